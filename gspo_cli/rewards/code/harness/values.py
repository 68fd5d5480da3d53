"""A result as typed JSON, built from exact base types, so that no object of the program can answer for itself.

Scalars stand for themselves, everything else is a list whose first item says what it is:
l list, t tuple, d dict as pairs, s set, i long integer, h one of more digits than may be printed, c complex, D Decimal,
F Fraction, a numpy array or scalar (shape, and the item if it is one), n narrow numpy float, o anything else. The
grader's side is `rewards/values.py`.
"""

import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_DEPTH = 400  # deeper ones are opaque
MAX_DIGITS = 50_000
MAX_BITS = 166_096  # of the largest integer of that many digits
PLAIN_BITS = 14_000  # below the 4300 digits that any Python prints


class Encoder:
    """Encodes one value; `odd` tells whether it held something whose text may fail, `too_long` an integer."""

    def __init__(self, numpy: bool = True) -> None:
        self.odd = self.too_long = False
        self._takes_numpy = numpy
        self._open: set[int] = set()

    def encode(self, value: Any, depth: int = 0) -> Any:
        """The value as JSON types."""
        kind = type(value)
        if value is None or kind is bool or kind is float or kind is str:
            return value
        if issubclass(kind, int):
            return self._integer(int.__add__(value, 0))
        if issubclass(kind, str):
            return str.__str__(value)
        if issubclass(kind, float) and not _numpy(kind):
            return float.__float__(value)
        if id(value) in self._open or depth > MAX_DEPTH:
            return self._opaque()
        self._open.add(id(value))
        try:
            return self._container(value, kind, depth + 1)
        finally:
            self._open.discard(id(value))

    def _container(self, value: Any, kind: type, depth: int) -> Any:
        if issubclass(kind, list):
            return ["l", *[self.encode(v, depth) for v in list.__iter__(value)]]
        if issubclass(kind, tuple):
            return ["t", *[self.encode(v, depth) for v in tuple.__iter__(value)]]
        if issubclass(kind, dict):
            return ["d", *[[self.encode(k, depth), self.encode(v, depth)] for k, v in dict.items(value)]]
        if kind is set or kind is frozenset:
            return ["s"]
        if kind is complex:
            return ["c", value.real, value.imag]
        if kind is Decimal:
            return ["D", str(value)]
        if kind is Fraction:
            return ["F", hex(value.numerator), hex(value.denominator)]
        return self._numpy(value, depth) if self._takes_numpy and _numpy(kind) else self._opaque()

    def _integer(self, value: int) -> Any:
        if value.bit_length() < PLAIN_BITS:
            return value
        if value.bit_length() > MAX_BITS or abs(value) >= 10**MAX_DIGITS:
            self.odd = self.too_long = True
            return ["h"]
        return ["i", hex(value)]

    def _numpy(self, value: Any, depth: int) -> Any:
        numpy = sys.modules["numpy"]
        array = numpy.asarray(value)
        if array.size != 1:
            return ["a", list(array.shape), None]
        if array.dtype in (numpy.float16, numpy.float32):
            return ["a", list(array.shape), ["n", "e" if array.dtype == numpy.float16 else "f", float(array.item())]]
        item = array.item()
        return ["a", list(array.shape), self._opaque() if _numpy(type(item)) else self.encode(item, depth)]

    def _opaque(self) -> Any:
        self.odd = True
        return ["o"]


def _numpy(kind: type) -> bool:
    """Whether it is a type of the real numpy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, (numpy.generic, numpy.ndarray))
