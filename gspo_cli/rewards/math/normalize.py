"""Read an answer as a text or a number, whatever its spelling."""

import re
from fractions import Fraction
from typing import NamedTuple

from gspo_cli.rewards.math.arithmetic import value
from gspo_cli.rewards.math.equation import SIGN, contradicts, is_unsolved
from gspo_cli.rewards.math.rewrite import with_sums
from gspo_cli.rewards.math.typography import closes, tidy
from gspo_cli.rewards.math.units import WRAPPER, differ, split_units, unit_of

MAX_DIGITS = 40  # of one numeral; a longer one is not a plain number
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_MIXED = re.compile(r"([+-]?\s*\d+)\s+(\d+)\s*/\s*(\d+)")
_BASED = re.compile(r"\(?0*([0-9A-F]+)\)?\s*_[\s(]*(?:base\s*)?([0-9]{1,2}|[a-z]{3,7})[\s)]*")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
          "ten": "10", "eleven": "11", "twelve": "12", "sixteen": "16"}  # fmt: skip


_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_NUMERALS = {word: i for i, word in enumerate(_ONES.split())} | {
    f"{ten} {word}".strip(): 10 * i + j
    for i, ten in enumerate(_TENS.split(), 2)
    for j, word in enumerate(["", *_ONES.split()[1:10]])
}


class Number(NamedTuple):
    """A plain number as it was written."""

    value: Fraction
    units: tuple[str, ...] = ()

    @property
    def percent(self) -> bool:
        """Whether a percent sign follows."""
        return "percent" in self.units


def number(text: str) -> Number | None:
    """A rational number or arithmetic of that value, with what may surround it (`$1,024.00`, `1\\frac{1}{2}`,
    `2\\cdot 51`, `50\\%`, `x = 3 \\text{ cm}`); None for anything else, and for a division by zero."""
    if len(text) > MAX_LENGTH:
        return None
    plain, units = bare(right_side(tidy(text)))
    if "(" not in plain:  # (1,024) is a point
        plain = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), plain)
    plain = _MIXED.sub(r"\1\\frac{\2}{\3}", re.sub(r"(?<=\d)\{(\d+)\}", r"\1", plain))
    found = None if re.search(rf"\d{{{MAX_DIGITS + 1}}}", plain) else value(with_sums(plain))
    return Number(found, units) if isinstance(found, Fraction) else None


def in_words(text: str) -> Number | None:
    """A whole number below 100 that is written out, such as `\\text{twenty-one days}`; None for anything else."""
    plain, units = bare(right_side(tidy(text))) if len(text) <= MAX_LENGTH else ("", ())
    words = plain.lower().replace("-", " ").split()
    for count in (1, 2):
        found = _NUMERALS.get(" ".join(words[:count]))
        unit = unit_of(" ".join(words[count:]))
        if found is not None and (unit or len(words) == count):
            return Number(Fraction(found), (*units, unit) if unit else units)
    return None


def same_number(gold: Number, answer: Number) -> bool:
    """Exact equality, in the same unit if both have one. A percent sign on one side only may mean a hundredth or
    nothing; but to a plain gold number below 1, 0.5% is not 0.5."""
    if differ(gold.units, answer.units):
        return False
    if gold.percent == answer.percent:
        return gold.value == answer.value
    signed, plain = (gold, answer) if gold.percent else (answer, gold)
    may_mean_nothing = gold.percent or abs(gold.value) >= 1
    return plain.value == signed.value / 100 or (may_mean_nothing and plain.value == signed.value)


def in_base(text: str) -> tuple[str, str] | None:
    """(digits, base) of a numeral with a subscript, such as `2215_{6}` or `12_{\\text{ten}}`; else None."""
    if len(text) > MAX_LENGTH:
        return None
    match = _BASED.fullmatch(re.sub("[{}]", "", _WRAPPERS.sub("", right_side(tidy(text)))))
    base = _BASES.get(match[2], match[2]) if match else ""
    if match is None or not base.isdecimal() or any(int(digit, 16) >= int(base) for digit in match[1]):
        return None
    return match[1], base


MAX_LENGTH = 300  # characters

_WRAPPERS = re.compile(rf"{WRAPPER}(?=\{{)")
_COMPARISON = re.compile(
    r"[<>]|!=|/=|\\not(?![A-Za-z])|\\(?:le|leq|leqslant|ge|geq|geqslant|ne|neq|lt|gt|pm|mp)(?![A-Za-z])"
)
_SEVERAL = re.compile(r"[,;]|\\(?:lor|vee|land|wedge)(?![A-Za-z])|\b(?:or|and)\b")
_TEXT = re.compile(r"\\(?:text[a-z]*|mbox)\s*\{")
_FULL_STOP = re.compile(r"(?<!\.)\.{1,2}\s*$|\s+$")  # three are an ellipsis
_SIDE_BY_SIDE = re.compile(r"[0-9][\s{}]*(?:\\?\$|\\(?:boxed|fbox)(?![A-Za-z]))[\s{}$]*[0-9]")
_ARTICLE = re.compile(r"^(?:an?|the) (?=[a-z]{3})")
_PHRASE = re.compile(r"[A-Za-z][A-Za-z ]+")
_BASE_TEN = re.compile(r"\s*_(?:\{10\}|10)\s*\.?$")


def right_side(text: str) -> str:
    """What follows the last `=` or `\\equiv` of a tidied equation or chain of equations; any other text unchanged, and
    so is an equation that is false, or that is not solved for its unknown."""
    left, sign, right = SIGN.sub("=", text).rpartition("=")
    if not sign or _COMPARISON.search(text):
        return text
    outside = re.sub(r"\([^()]*\)", "", left)
    several = _SEVERAL.search(outside) if "=" in left else re.search("[,;]", re.sub(r"\{[^{}]*\}", "", outside))
    return text if several or contradicts(text) or is_unsolved(text) or in_words(left) else right.strip()


def bare(text: str) -> tuple[str, tuple[str, ...]]:
    """A tidied text without what may surround a number: wrappers, currency, degrees, percent, units, a final full stop,
    `\\pmod{..}`, the subscript of base ten; and its units, `percent` among them."""
    before, found = None, set[str]()
    while text != before:
        before = text
        text, units = split_units(_BASE_TEN.sub("", text))
        found.update(units)
        text = unwrap(text)
    return text, tuple(sorted(found))


def unwrap(text: str) -> str:
    """Without `\\text`, `\\mathrm`, `\\boxed` and the like, and without braces around the whole."""
    text = _WRAPPERS.sub("", text).strip()
    while text.startswith("{") and text.endswith("}") and closes(text) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def same_text(one: str, other: str) -> bool:
    """Whether two answers are equal apart from typography and, for words in `\\text{..}`, case."""
    if max(len(one), len(other)) > MAX_LENGTH:
        return one.strip() == other.strip()
    if side_by_side(one) != side_by_side(other):
        return False
    first, second = _canonical(one), _canonical(other)
    if first == second:
        return True
    words = _TEXT.search(one) or _TEXT.search(other)  # `ab` is not `AB`
    if not (words and _PHRASE.fullmatch(first)):
        return False
    return _plain_phrase(first) == _plain_phrase(second)


def _plain_phrase(text: str) -> str:
    """A phrase without case and article; `no solutions` is no more than `no solution`."""
    return re.sub(r"^(no (?:real )?solution)s$", r"\1", _ARTICLE.sub("", text.lower()))


def side_by_side(text: str) -> bool:
    """Whether two numerals are parted by a delimiter that is dropped: `7$8$` and `7\\boxed{8}` are not 78."""
    return ("$" in text or "box" in text) and _SIDE_BY_SIDE.search(text) is not None


def _canonical(text: str) -> str:
    before, text = None, re.sub(r"\s+", " ", tidy(text)).replace("$", "")
    while text != before:  # a full stop may stand within a wrapper too
        before, text = text, _FULL_STOP.sub("", unwrap(_FULL_STOP.sub("", text)))
    text = re.sub(r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])", "", text)
    while (shorter := re.sub(r"\{([0-9A-Za-z])\}", r"\1", text)) != text:
        text = shorter
    return text
