"""What is never handed to computer algebra: answers that would keep it busy without end, or that are no mathematics."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gspo_cli.rewards.clean import MAX_LENGTH

MAX_NESTING = 30
MAX_POWERS = 2  # a power of a power; not a power of that
MAX_EXPONENT = 1000
MAX_BINOMIAL = 1000
MAX_FACTORIAL = 999
_HUGE = 10**6  # stands for every larger size
_WORDS = re.compile(r"\\(?:[io]*int|sum|prod|coprod)(?![A-Za-z])|__|lambda")
_BINOMIAL = re.compile(r"\\[dt]?binom(?![A-Za-z])|\\choose(?![A-Za-z])")
_TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|[0-9]+|\S", re.DOTALL)
_OPENING, _CLOSING = ("{", "(", "[", r"\{"), ("}", ")", "]", r"\}")


def refused(text: str) -> bool:
    """Whether a tidied answer is too long, nests too deep, or holds a large power, factorial or binomial, an integral,
    a sum or a product, or what looks like a program."""
    if len(text) > MAX_LENGTH or _WORDS.search(text):
        return True
    return _shape_is_too_large(text, MAX_BINOMIAL if _BINOMIAL.search(text) else _HUGE)


@dataclass
class _Atom:
    """A character, numeral or group, as far as its size goes."""

    size: int = 1
    """No smaller than its largest numeral or power of numerals."""
    powers: int = 0
    """Depth of powers of powers within it."""
    factorial: bool = False


@dataclass
class _Group:
    """A group that is being read."""

    largest: _Atom = field(default_factory=_Atom)
    last: _Atom = field(default_factory=_Atom)
    base: _Atom | None = None
    """What the exponent to come belongs to."""

    def add(self, atom: _Atom) -> bool:
        """Takes in the next atom; whether it is too large a power."""
        too_large = False
        if self.base is not None:
            too_large = atom.size > MAX_EXPONENT
            depth = 1 + max(self.base.powers, atom.powers)
            atom = _Atom(_power(self.base.size, atom.size), depth, self.base.factorial or atom.factorial)
            self.base = None
        self.last, best = atom, self.largest
        self.largest = _Atom(max(best.size, atom.size), max(best.powers, atom.powers), best.factorial or atom.factorial)
        return too_large or atom.powers > MAX_POWERS


def _shape_is_too_large(text: str, largest: int) -> bool:
    """`largest` = the largest number or power that it may hold."""
    groups = [_Group()]
    for token in _TOKEN.findall(text):
        group = groups[-1]
        if token in _OPENING:
            groups.append(_Group())
        elif token in _CLOSING and len(groups) > 1:
            groups.pop()
            if groups[-1].add(group.largest):
                return True
        elif token == "^":
            group.base = group.last
        elif token == "!":
            if group.last.factorial or group.last.size > MAX_FACTORIAL:
                return True
            group.last.factorial = group.largest.factorial = True
        elif group.add(_Atom(_size(token) if token[0].isdecimal() else 1)):
            return True
        if len(groups) > MAX_NESTING:
            return True
    return any(group.largest.size > largest for group in groups)


def _size(numeral: str) -> int:
    return _HUGE if len(numeral) > 6 else int(numeral)


def _power(base: int, exponent: int) -> int:
    return _HUGE if base > 1 and exponent > 20 else int(min(base**exponent, _HUGE))
