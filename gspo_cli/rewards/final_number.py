"""The final number of a worked answer, without trusting or evaluating its text."""

import re
from fractions import Fraction

MAX_LENGTH = 40  # characters of a number; longer ones are no answer
_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|[+-]?\.\d+", re.ASCII)
_TRIM = " \t\n$*.%"


def number(text: str) -> Fraction | None:
    """`text` as an exact number: `1,024`, `-3.50`, `$18`, `18.`; None if it is anything else."""
    text = text.strip(_TRIM)
    if len(text) > MAX_LENGTH or not _NUMBER.fullmatch(text):
        return None
    return Fraction(text.replace(",", ""))


def final_number(text: str) -> Fraction | None:
    """What the response commits to: the line after the last `####`, else the last closed `\\boxed{...}`.

    Numbers that are merely mentioned do not count, and only text after the last `</think>` does.
    """
    text = text.rsplit("</think>", 1)[-1]
    if "####" in text:
        rest = text.rsplit("####", 1)[1].strip()
        return number(rest.splitlines()[0]) if rest else None
    start = text.rfind("\\boxed{")
    end = text.find("}", start)
    return number(text[start + len("\\boxed{") : end]) if 0 <= start < end else None
