"""Compare what a program printed or returned with what is expected."""

import json
import math
import re
import struct
from decimal import Context, Decimal, InvalidOperation
from itertools import zip_longest
from typing import Any

from gspo_cli.rewards.code.harness.channel import MAX_BITS

_WORD = re.compile(r"\S+")
_HEX = re.compile(rf"-?0x[0-9a-f]{{1,{MAX_BITS // 4}}}")
MAX_PLAIN_DIGITS = 4300
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


def read_value(payload: bytes) -> Any:
    """Typed JSON as the harness sends it. Errors: ValueError, RecursionError."""
    return json.loads(payload.decode("utf-8", "surrogatepass"), parse_int=_short_integer)


def _short_integer(digits: str) -> int:
    if len(digits) > MAX_PLAIN_DIGITS:
        raise ValueError("the harness sends longer integers in base 16")
    return int(digits)


def same_value(sent: Any, expected: Any) -> bool:
    """Whether a value that the harness sent equals the expected one; a tuple at the top counts as a list.

    The time that it takes is bounded by the size of both, whatever was sent. Errors: NoTruth; ValueError, TypeError,
    LookupError for a value that the harness never sends.
    """
    if isinstance(sent, list) and sent and sent[0] == "t":
        sent = ["l", *sent[1:]]
    return _equal(sent, expected)


def _equal(sent: Any, expected: Any) -> bool:
    if not isinstance(sent, list | dict):
        return not isinstance(expected, list | dict) and bool(sent == expected)
    match sent:
        case ["l", *items]:
            return isinstance(expected, list) and len(items) == len(expected) and all(map(_equal, items, expected))
        case ["d", *pairs]:
            given = {key: value for key, value in pairs if isinstance(key, str)}
            if not isinstance(expected, dict) or not len(given) == len(pairs) == len(expected):
                return False
            return all(key in expected and _equal(value, expected[key]) for key, value in given.items())
        case ["a", list(shape), item] if all(type(size) is int for size in shape):
            return _array_equal(shape, item, expected)
        case [str(kind), *parts]:
            return isinstance(expected, int | float) and _number(kind, parts, expected)
    raise ValueError("the harness never sends this")


def _number(kind: str, parts: list[Any], expected: int | float) -> bool:
    """Numbers that JSON lacks: complex, Decimal, Fraction, long integers, narrow numpy floats."""
    match kind, parts:
        case "c", [float(real), float(imaginary)]:
            return complex(real, imaginary) == expected
        case "D", [str(text)]:
            value = _decimal(text)
            if value.is_snan():
                raise NoTruth
            return value == expected
        case "F", [str(numerator), str(denominator)]:  # in lowest terms, so nothing needs to be reduced
            finite = isinstance(expected, int) or math.isfinite(expected)
            return finite and (_base_16(numerator), _base_16(denominator)) == expected.as_integer_ratio()
        case "i", [str(digits)]:
            return _base_16(digits) == expected
        case "n", [("e" | "f") as width, float(value)]:  # numpy compares it after rounding the other side to its width
            try:
                return bool(struct.unpack(width, struct.pack(width, expected))[0] == value)
            except (OverflowError, struct.error):
                return False
        case ("t", _) | (("s" | "h" | "o"), []):  # an inner tuple, a set, a too long integer, any other object
            return False
    raise ValueError("the harness never sends this")


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text, _EXACT)
    except InvalidOperation as error:
        raise ValueError("no decimal") from error


def _base_16(digits: str) -> int:
    if not _HEX.fullmatch(digits):
        raise ValueError("no integer")
    return int(digits, 16)


def _array_equal(shape: list[int], item: Any, expected: Any) -> bool:
    """Element by element with broadcasting; there is a truth value only if exactly one element results."""
    other, element = _shape(expected)
    result = _broadcast(shape, other)
    if 0 in result:
        raise EmptyTruth
    if any(size != 1 for size in result):
        raise NoTruth
    match item:
        case ["n", _, float(value)] if other:  # against an array, the other side is not rounded
            return bool(value == element)
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


def is_plain(sent: Any) -> bool:
    """Whether a sent value is made of JSON's types and of numbers of any type, numpy's included, which equal those.

    Whether a tuple counts as a list is for the comparison to decide.
    """
    match sent:
        case [("l" | "t"), *items]:
            return all(map(is_plain, items))
        case ["d", *pairs]:
            return all(is_plain(value) for _, value in pairs)
        case ["a", shape, _]:
            return bool(shape == [])
    return True  # a number, or what equals nothing
