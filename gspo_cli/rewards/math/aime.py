"""The grader for answers that are integers from 0 on (AIME): reading and exact arithmetic."""

from __future__ import annotations

import re
from operator import eq

from gspo_cli.rewards.math.grade import grade_value
from gspo_cli.rewards.math.normalize import number
from gspo_cli.rewards.verdict import Verdict

MAX_DIGITS = 12


def grade_aime(response: str, gold: str) -> Verdict:
    """Whether the response's answer is the integer `gold`; both are read in base 10, leading zeros included.

    Arithmetic of that value (`\\frac{408}{2}`, `2\\cdot 102`) is that integer. Percent, approximations, two numbers, a
    range, a choice of sign and other bases are `no_answer`.
    """
    return grade_value(response, gold, "integer", integer, eq)


def integer(text: str) -> int | None:
    """The integer that a text denotes, apart from typography, units and `x =`."""
    found = number(text)
    if found is None or found.percent or found.value.denominator > 1 or re.search(rf"[0-9]{{{MAX_DIGITS + 1}}}", text):
        return None
    return int(found.value) if 0 <= found.value < 10**MAX_DIGITS else None
