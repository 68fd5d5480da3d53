"""Plain numbers as exact fractions, read without evaluating anything."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from gspo_cli.rewards.clean import MAX_LENGTH, bare, right_side, tidy

MAX_DIGITS = 40  # of one numeral; a longer one is no plain number
_WHOLE = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)"
_DECIMAL = rf"{_WHOLE}(?:\.[0-9]*)?|\.[0-9]+"
_ARGUMENT = rf"(?:\{{\s*([+-]?\s*(?:{_DECIMAL}))\s*\}}|([0-9]))"
_FRACTION = rf"(?:\\[dtc]?frac\s*{_ARGUMENT}\s*{_ARGUMENT}|([0-9]+)\s*/\s*([0-9]+))"
_NUMBER = re.compile(rf"([+-]?)\s*(?:({_DECIMAL})|(?:([0-9]+)\s*(?:\s|(?=\\)))?{_FRACTION})")
_PERCENT = re.compile(r"(?:\\?%|(?:\bpercent|\\text\s*\{\s*percent\s*\}))\s*\.?$")
_BASED = re.compile(r"\(?0*([0-9][0-9A-F]*)\)?\s*_\s*\{?\s*(?:\\text\s*\{)?\s*([0-9]{1,2})\s*\}{0,2}\)?")


class Number(NamedTuple):
    """A plain number as it was written."""

    value: Fraction
    percent: bool
    """Whether a percent sign follows."""


def number(text: str) -> Number | None:
    """An integer, decimal, simple fraction or mixed number with whatever stands around it (`$1,024.00`, `-\\frac12`,
    `1\\frac{1}{2}`, `50\\%`, `x = 3 \\text{ cm}`); None if it is anything else, or divides by zero."""
    if len(text) > MAX_LENGTH:
        return None
    tidied = right_side(tidy(text))
    return _read(bare(tidied), _PERCENT.search(tidied) is not None)


def _read(text: str, percent: bool) -> Number | None:
    found = _NUMBER.fullmatch(text)
    if found is None or any(len(run) > MAX_DIGITS for run in re.findall("[0-9]+", text)):
        return None
    sign, decimal, whole, *parts = found.groups()
    if decimal:
        value = _decimal(decimal)
    else:
        above, below = [_decimal(part) for part in parts if part]
        if below == 0 or (whole and min(above, below) < 0):
            return None
        value = int(whole or 0) + above / below
    return Number(-value if sign == "-" else value, percent)


def _decimal(text: str) -> Fraction:
    digits = re.sub(r"[\s,]", "", text).removesuffix(".")
    return Fraction(digits)


def same_number(gold: Number, answer: Number) -> bool:
    """Exact equality; a percent sign on one side alone may stand for a hundredth or for nothing."""
    if gold.percent == answer.percent:
        return gold.value == answer.value
    signed, plain = (gold, answer) if gold.percent else (answer, gold)
    return plain.value in (signed.value, signed.value / 100)


def in_base(text: str) -> tuple[str, str] | None:
    """(digits, base) of a numeral with a subscript, such as `2215_{6}`; None for base ten and for anything else."""
    found = _BASED.fullmatch(right_side(tidy(text))) if len(text) <= MAX_LENGTH else None
    if found is None or int(found[2]) == 10 or any(int(digit, 16) >= int(found[2]) for digit in found[1]):
        return None
    return found[1], found[2]
