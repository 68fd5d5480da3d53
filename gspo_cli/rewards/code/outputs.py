"""Compare what a program printed or returned with what is expected."""

from __future__ import annotations

import re
import struct
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction
from itertools import zip_longest
from typing import Any

_WORD = re.compile(r"\S+")
_EXACT = Context()  # other code in this process may change the shared context


class SignallingNaN(Exception):
    """Comparing with one raises; officially that is the program's error."""


def same_output(output: str, expected: str) -> bool:
    """Equal after stripping the whole and each line (only \\n ends a line); see `same_line`. Errors: SignallingNaN."""
    output, expected = output.strip(), expected.strip()
    if output.count("\n") != expected.count("\n"):  # before anything is split: outputs may be large
        return False
    pairs = zip(output.split("\n"), expected.split("\n"), strict=True)
    return all(same_line(a.strip(), b.strip()) for a, b in pairs)


def same_line(line: str, expected: str) -> bool:
    """Equal as text, or both are decimals only, exactly equal one by one. No tolerance. Errors: SignallingNaN."""
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
            raised = True  # counts only if all other words are decimals too
    if raised:
        raise SignallingNaN
    return True


class NoTruth(Exception):
    """The comparison raises, as for an array of several elements: officially the program's error."""


class EmptyTruth(NoTruth):
    """The comparison gives an empty array: officially this ends the worker if the array is the whole result."""


def same_value(sent: Any, expected: Any) -> bool:
    """Whether a value that the harness sent equals the expected one; a tuple at the top counts as a list.

    Errors: NoTruth; ValueError, TypeError, LookupError for a value that the harness never sends.
    """
    if isinstance(sent, list) and sent and sent[0] == "t":
        sent = ["l", *sent[1:]]
    return _equal(sent, expected)


def _equal(sent: Any, expected: Any) -> bool:
    if isinstance(sent, dict):
        raise TypeError("objects travel as lists")
    if not isinstance(sent, list):
        return not isinstance(expected, list | dict) and bool(sent == expected)
    kind, *parts = sent
    if kind == "l":
        if not isinstance(expected, list) or len(parts) != len(expected):
            return False
        return all(_equal(a, b) for a, b in zip(parts, expected, strict=True))
    if kind == "d":
        if not isinstance(expected, dict) or len(parts) != len(expected):
            return False
        return all(isinstance(k, str) and k in expected and _equal(v, expected[k]) for k, v in parts)
    if kind == "a":
        shape, item = parts
        return _array_equal(shape, item, expected)
    number = isinstance(expected, int | float) or None
    return bool(number and _number(kind, parts, expected))


def _number(kind: str, parts: list[Any], expected: int | float) -> bool:
    """Numbers that JSON lacks: complex, Decimal, Fraction, long integers, narrow numpy floats."""
    if kind == "c":
        return complex(*parts) == expected
    if kind == "D":
        value = Decimal(parts[0])
        if value.is_snan():
            raise NoTruth
        return value == expected
    if kind == "F":
        return Fraction(int(parts[0], 16), int(parts[1], 16)) == expected
    if kind == "i":
        return int(parts[0], 16) == expected
    if kind == "n":  # numpy compares it after rounding the other side to its width
        try:
            return bool(struct.unpack(parts[0], struct.pack(parts[0], expected))[0] == parts[1])
        except (OverflowError, struct.error):
            return False
    return False


def _array_equal(shape: list[int], item: Any, expected: Any) -> bool:
    """Element by element with broadcasting; there is a truth value only if exactly one element results."""
    other, element = _shape(expected)
    result = _broadcast(shape, other)
    if 0 in result:
        raise EmptyTruth
    if any(size != 1 for size in result):
        raise NoTruth
    if other and isinstance(item, list) and item[0] == "n":  # against an array, the other side is not rounded
        return bool(item[2] == element)
    return _equal(item, element)


def _shape(value: Any) -> tuple[list[int], Any]:
    """The shape of nested lists, and their innermost first element.

    Errors: NoTruth if the lists are not rectangular.
    """
    if not isinstance(value, list):
        return [], value
    inner = [_shape(v) for v in value]
    if any(i[0] != inner[0][0] for i in inner):
        raise NoTruth
    return [len(value), *(inner[0][0] if inner else [])], inner[0][1] if inner else None


def _broadcast(a: list[int], b: list[int]) -> list[int]:
    """The shape of an element-wise operation. Errors: NoTruth if the shapes do not fit."""
    a, b = [1] * (len(b) - len(a)) + a, [1] * (len(a) - len(b)) + b
    if any(x != y and 1 not in (x, y) for x, y in zip(a, b, strict=True)):
        raise NoTruth
    return [y if x == 1 else x for x, y in zip(a, b, strict=True)]
