r"""The value of an answer that is arithmetic and nothing else, such as `3+5`, `\frac{2}{3}\sqrt{7}` or `2^{10}`.

It is compared with the gold answer where both are fractions, and it serves to check what an answer claims about itself
(`3+5 = 7`, `\sqrt{2} \approx 1.5`). What it does not know has no value.
"""

import math
import re
from fractions import Fraction

MAX_LENGTH = 100  # characters
_MAX_EXPONENT = 200
_MAX_BITS = 4096
_LARGEST = 1e200
_TOKEN = re.compile(r"\s*(\d+\.?\d*|\.\d+|\\[A-Za-z]+|\\%|[-+*/^_(){}\[\]!]|e(?![A-Za-z]))")
_TIMES = ("*", r"\cdot", r"\times")
_OVER = ("/", r"\div")
_NUMERAL = frozenset(".0123456789")
_CONSTANTS = {r"\pi": math.pi, "e": math.e}
_CLOSING = {"{": "}", "(": ")", "[": "]"}

Value = Fraction | float


def value(text: str) -> Value | None:
    """The value of a tidied text: a fraction where it is exact, otherwise a float; None if the text is anything else
    than real arithmetic, or too large."""
    if len(text) > MAX_LENGTH:
        return None
    text = re.sub(r"\\(?:left|right)(?![A-Za-z])", "", text)
    if _TOKEN.sub("", text).strip():
        return None
    reader = _Reader(_TOKEN.findall(text))
    try:
        found = reader.sum()
        return found if not reader.tokens and -_LARGEST < found < _LARGEST else None
    except (_NoValueError, ArithmeticError, RecursionError):
        return None


class _NoValueError(Exception):
    """The text is not arithmetic."""


class _Reader:
    """Recursive descent over the tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens[::-1]
        """Those that are not read yet, the next one last."""

    def sum(self) -> Value:
        total = self._product()
        while self._next() in ("+", "-"):
            total = total + self._product() if self._take() == "+" else total - self._product()
        return total

    def _product(self) -> Value:
        sign = -1 if self._next() in ("+", "-") and self._take() == "-" else 1
        total = self._power()
        if self._next() == r"\frac" and self._taken.isdecimal():
            raise _NoValueError  # `3\frac{1}{4}` may be a mixed number
        while (token := self._next()) and token not in ("+", "-", "}", ")", "]"):
            if token in (*_TIMES, *_OVER):
                self._take()
            elif token[0] in _NUMERAL:
                raise _NoValueError  # `2 3` is two numbers
            total = total / self._power() if token in _OVER else total * self._power()
        return sign * total

    def _power(self) -> Value:
        base = self._atom()
        while self._next() in ("^", "!", r"\%"):
            token = self._take()
            if token == "^":
                base = _raised(base, self._argument())
            elif token == r"\%":
                base = base / 100
            else:
                base = Fraction(math.factorial(_at_most_100(base)))
        return base

    def _argument(self) -> Value:
        """What follows a command or `^`: a group, or one digit of a numeral."""
        token = self._next()
        if token.isdecimal() and len(token) > 1:
            self.tokens[-1:] = [token[1:], token[0]]
        return self._atom()

    def _atom(self) -> Value:
        token = self._take()
        if token in _CONSTANTS:
            return _CONSTANTS[token]
        if token in ("{", "("):
            return self._group(_CLOSING[token])
        if token == r"\frac":
            return self._argument() / self._argument()
        if token == r"\binom":
            return Fraction(math.comb(_at_most_100(self._argument()), _at_most_100(self._argument())))
        if token == r"\sqrt":
            return self._root()
        if token in (r"\log", r"\ln"):
            return self._logarithm(math.e if token == r"\ln" else 10.0)
        if token[:1] not in _NUMERAL:
            raise _NoValueError
        return Fraction(token.removesuffix("."))

    def _group(self, closing: str) -> Value:
        inner = self.sum()
        if self._take() != closing:
            raise _NoValueError
        return inner

    def _root(self) -> Value:
        index: Value = Fraction(2)
        if self._next() == "[":
            self._take()
            index = self._group("]")
        radicand = self._argument()
        if radicand < 0 or index not in range(1, 100):
            raise _NoValueError
        root: float = float(radicand) ** (1 / float(index))
        exact = Fraction(round(root))
        return exact if isinstance(radicand, Fraction) and exact ** int(index) == radicand else root

    def _logarithm(self, base: float) -> Value:
        if self._next() == "_":
            self._take()
            base = float(self._argument())
        argument = float(self._power())
        if base <= 0 or base == 1 or argument <= 0:
            raise _NoValueError
        return math.log(argument) / math.log(base)

    def _next(self) -> str:
        return self.tokens[-1] if self.tokens else ""

    def _take(self) -> str:
        self._taken = self.tokens.pop() if self.tokens else ""
        return self._taken


def _at_most_100(found: Value) -> int:
    if found not in range(101) or not isinstance(found, Fraction):
        raise _NoValueError
    return int(found)


def _raised(base: Value, exponent: Value) -> Value:
    if not -_MAX_EXPONENT <= exponent <= _MAX_EXPONENT or (base < 0 and exponent != int(exponent)):
        raise _NoValueError
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        if max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(exponent.numerator) > _MAX_BITS:
            raise _NoValueError
        return Fraction(base**exponent.numerator)
    return math.pow(base, exponent)


def same_value(one: Value, other: Value) -> bool:
    """Whether two values are equal: exactly if both are fractions, otherwise to nine digits."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    return math.isclose(float(one), float(other), rel_tol=1e-9, abs_tol=1e-12)
