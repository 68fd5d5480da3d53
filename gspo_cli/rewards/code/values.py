"""Whether a program's result, sent as typed JSON, equals the expected JSON value.

The comparison is Python's `==` on values rebuilt from exact base types (`harness/values.py` says how they are sent):
True equals 1, 3.0 equals 3, a nested tuple is no list, and an object of the program's own equals nothing.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any


class NoTruth(Exception):
    """The comparison raises, as with an array of several elements: officially an error of the program."""


class EmptyTruth(NoTruth):
    """An empty array came out of it: officially the end of the worker, where it is the whole result."""


def same_value(sent: Any, expected: Any) -> bool:
    """Whether they are equal; a tuple at the top counts as a list.

    Errors: NoTruth; ValueError, TypeError, LookupError for what the harness never sends.
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
    """Element by element with broadcasting: a truth value only where exactly one element comes out."""
    other, element = _shape(expected)
    result = _broadcast(shape, other)
    if 0 in result:
        raise EmptyTruth
    if any(size != 1 for size in result):
        raise NoTruth
    if other and isinstance(item, list) and item[0] == "n":  # as an array the other side is not rounded
        return bool(item[2] == element)
    return _equal(item, element)


def _shape(value: Any) -> tuple[list[int], Any]:
    """The shape of nested lists, and their innermost first element.

    Errors: NoTruth where the lists are not rectangular.
    """
    if not isinstance(value, list):
        return [], value
    inner = [_shape(v) for v in value]
    if any(i[0] != inner[0][0] for i in inner):
        raise NoTruth
    return [len(value), *(inner[0][0] if inner else [])], inner[0][1] if inner else None


def _broadcast(a: list[int], b: list[int]) -> list[int]:
    """The shape of an element-wise operation. Errors: NoTruth where the shapes do not fit."""
    a, b = [1] * (len(b) - len(a)) + a, [1] * (len(a) - len(b)) + b
    if any(x != y and 1 not in (x, y) for x, y in zip(a, b, strict=True)):
        raise NoTruth
    return [y if x == 1 else x for x, y in zip(a, b, strict=True)]
