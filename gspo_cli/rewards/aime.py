"""The checker for answers that are integers from 0 on: AIME. No computer algebra, no evaluation, linear time."""

from __future__ import annotations

import re

from gspo_cli.rewards.clean import MAX_LENGTH, bare, is_comparison, right_side, tidy
from gspo_cli.rewards.extract import extract
from gspo_cli.rewards.verdict import GRADER_ERROR, Verdict

_INTEGER = re.compile(r"\+?([0-9]{1,12}|[1-9][0-9]{0,2}(?:,[0-9]{3}){1,3})(?:\.0{1,12})?")


def grade_aime(response: str, gold: str) -> Verdict:
    """Whether the response's answer is the integer `gold`; both are read in base 10, leading zeros and all.

    A sum, a power or a fraction that would give the integer is no integer, and neither are two numbers, a range, a
    choice of sign or another base: those are `no_answer`.
    """
    right = integer(gold)
    if right is None:
        return Verdict(GRADER_ERROR, False, "bad gold")
    found = extract(response)
    if found.text is None:
        return Verdict("no_answer", False, found.by)
    given = integer(found.text)
    if given is None:
        return Verdict("no_answer", False, "no integer", found.text[:MAX_LENGTH], found.by)
    return Verdict("correct" if given == right else "wrong", given == right, "integer", found.text, found.by)


def integer(text: str) -> int | None:
    """The integer that a text of at most `MAX_LENGTH` characters is, its typography, units and `x =` apart."""
    if len(text) > MAX_LENGTH:
        return None
    tidied = tidy(text)
    if is_comparison(tidied):
        return None
    found = _INTEGER.fullmatch(re.sub("[{}]", "", bare(right_side(tidied))))
    return int(found[1].replace(",", "")) if found else None
