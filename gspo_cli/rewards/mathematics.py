"""The checker for mathematical answers of any kind (MATH), and the one for plain numbers (GSM8K).

What can be decided by reading is: equal texts, plain numbers, numerals with a base. Only the rest goes to computer
algebra, and of that only the chosen answer, never the response around it.
"""

from __future__ import annotations

import re

from gspo_cli.rewards.clean import MAX_LENGTH, right_side, same_text, tidy
from gspo_cli.rewards.extract import Extracted, extract
from gspo_cli.rewards.numerals import in_base, number, same_number
from gspo_cli.rewards.refuse import refused
from gspo_cli.rewards.verdict import GRADER_ERROR, Verdict
from gspo_cli.rewards.verify import VERIFIER

_SET = re.compile(r"\\\{.*\\\}", re.DOTALL)
_POINT = re.compile(r"[(\[].*,.*[)\]]", re.DOTALL)


def grade_number(response: str, gold: str) -> Verdict:
    """Whether the response's answer is the number `gold`, exactly."""
    right = number(gold)
    if right is None:
        return Verdict(GRADER_ERROR, False, "bad gold")
    found = extract(response)
    given = number(found.text) if found.text is not None else None
    if found.text is None or given is None:
        reason = found.by if found.text is None else "no number"
        return Verdict("no_answer", False, reason, _shown(found), found.by if found.text else None)
    return _decided(same_number(right, given), "number", found)


def grade_math(response: str, gold: str) -> Verdict:
    """Whether the response's answer means the same as `gold`.

    An answer that computer algebra could not digest is wrong unless it is written as the gold one is (`refused`). A
    comparison that ran out of time or memory, or whose process died, is no verdict on the answer: `grader_error`.
    """
    if not gold.strip():
        return Verdict(GRADER_ERROR, False, "bad gold")
    found = extract(response)
    if not found.text:
        return Verdict("no_answer", False, "none" if found.text == "" else found.by)
    decided = _by_reading(found.text, gold)
    if decided is not None:
        return _decided(*decided, found)
    right, given = tidy(gold).rstrip("."), tidy(found.text).rstrip(".")
    if refused(right) or refused(given):
        return _decided(False, "refused", found)
    outcome = VERIFIER.compare(right, given)
    if outcome not in ("same", "different"):
        return Verdict(GRADER_ERROR, False, outcome, _shown(found), found.by)
    return _decided(outcome == "same", "algebra", found)


def _by_reading(text: str, gold: str) -> tuple[bool, str] | None:
    """(whether right, how it was seen), or None where reading does not tell."""
    if same_text(gold, text):
        return True, "text"
    if len(text) > MAX_LENGTH or len(gold) > MAX_LENGTH:
        return False, "refused"
    if "=" not in gold and same_text(gold, right_side(tidy(text))):
        return True, "text"
    base, given_base = in_base(gold), in_base(text)
    right, given = number(gold), number(text)
    both_equations = "=" in gold and "=" in text  # y = 5 is not x = 5
    if base or given_base:  # which computer algebra would read as the digits alone
        if base and given_base:
            return base == given_base, "base"
        digits = base or given_base
        plain = given if base else right
        return bool(base and plain and digits and digits[0] == str(plain.value)), "base"
    if right and given and not both_equations:
        return same_number(right, given), "number"
    for one, other in ((tidy(gold), tidy(text)), (tidy(text), tidy(gold))):
        if _SET.fullmatch(one) and _POINT.fullmatch(other):  # a set is neither a point nor an interval
            return False, "set"
    return None


def _decided(right: bool, how: str, found: Extracted) -> Verdict:
    return Verdict("correct" if right else "wrong", right, how, _shown(found), found.by)


def _shown(found: Extracted) -> str | None:
    return None if found.text is None else found.text[:MAX_LENGTH]
