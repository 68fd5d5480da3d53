"""The grader for answers that are integers from 0 on (AIME): reading only, no evaluation, linear time."""

from __future__ import annotations

import re

from gspo_cli.rewards.math.extract import extract
from gspo_cli.rewards.math.normalize import MAX_LENGTH, bare, is_comparison, right_side
from gspo_cli.rewards.math.typography import tidy
from gspo_cli.rewards.verdict import GRADER_ERROR, Verdict

_INTEGER = re.compile(r"\+?([0-9]{1,12}|[1-9][0-9]{0,2}(?:,[0-9]{3}){1,3})(?:\.0{1,12})?")


def grade_aime(response: str, gold: str) -> Verdict:
    """Whether the response's answer is the integer `gold`; both are read in base 10, leading zeros included.

    Sums, powers and fractions are not evaluated, whatever their value. They are `no_answer`, and so are two numbers, a
    range, a choice of sign and other bases.
    """
    expected = integer(gold)
    if expected is None:
        return Verdict(GRADER_ERROR, False, "bad gold")
    answer = extract(response)
    if answer.text is None:
        return Verdict("no_answer", False, answer.by)
    value = integer(answer.text)
    if value is None:
        return Verdict("no_answer", False, "no integer", answer.text[:MAX_LENGTH], answer.by)
    return Verdict("correct" if value == expected else "wrong", value == expected, "integer", answer.text, answer.by)


def integer(text: str) -> int | None:
    """The integer that a text of at most `MAX_LENGTH` characters denotes, apart from typography, units and `x =`."""
    if len(text) > MAX_LENGTH:
        return None
    tidied = tidy(text)
    if is_comparison(tidied):
        return None
    match = _INTEGER.fullmatch(re.sub("[{}]", "", bare(right_side(tidied)).text))
    return int(match[1].replace(",", "")) if match else None
