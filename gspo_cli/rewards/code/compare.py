"""Whether printed output equals the expected one: line by line, as text or as exact decimals."""

from __future__ import annotations

import re
from decimal import Context, Decimal, InvalidOperation
from itertools import zip_longest

_WORD = re.compile(r"\S+")
_EXACT = Context()  # the program cannot reach this process, but other code in it may change the shared one


class SignallingNaN(Exception):
    """A comparison with one raises, which officially is an error of the program."""


def same_output(output: str, expected: str) -> bool:
    """Equal after stripping the whole and each line (lines end at \\n alone); see `same_line`.

    Errors: SignallingNaN.
    """
    output, expected = output.strip(), expected.strip()
    if output.count("\n") != expected.count("\n"):  # before anything is split: outputs may be large
        return False
    pairs = zip(output.split("\n"), expected.split("\n"), strict=True)
    return all(same_line(a.strip(), b.strip()) for a, b in pairs)


def same_line(line: str, expected: str) -> bool:
    """Equal as text, or both made of decimals alone, exactly equal one by one. No tolerance.

    Errors: SignallingNaN.
    """
    if line == expected:
        return True
    raised = False
    for a, b in zip_longest(_WORD.finditer(line), _WORD.finditer(expected)):
        if a is None or b is None:
            return False
        try:
            x, y = Decimal(a.group(), _EXACT), Decimal(b.group(), _EXACT)
        except InvalidOperation:
            return False
        if raised:
            continue
        try:
            if _EXACT.compare(x, y) != 0:  # also for NaN
                return False
        except InvalidOperation:
            raised = True  # counts only if the rest is decimals too
    if raised:
        raise SignallingNaN
    return True
