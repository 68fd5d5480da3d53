r"""What an answer claims about itself: which left sides of an equation are mere names, and which claims are false.

`x = 3`, `f(2) = 3`, `AB = 3` and `m+n = 3` name what is 3. `2x = 3` and `x^2 = 3` do not: x is something else.
"""

import re
from itertools import pairwise

from gspo_cli.rewards.math.arithmetic import same_value, value

SIGN = re.compile(r"\\equiv(?![A-Za-z])|=")
_ABOUT = re.compile(r"\\(?:approx|simeq|doteq)(?![A-Za-z])")
DOUBT = re.compile(
    r"\b(?:not|no(?!\.)|never|nor|n?either|hardly|doubt|unlikely|wrong|incorrect|false|whether|unless|nobody|denie[sd]|deny|cannot)\b"
    r"|n['\u2019]t\b",
    re.IGNORECASE,
)
_NO_NAME = re.compile(
    r"\b(?:or|but|maybe|perhaps|possibly|probably|guess|instead|if|about|approx\w*|roughly|nearly|almost)\b|\\(?:text|math|mbox)[a-z]*\s*\{[^{}]*[0-9]",
    re.IGNORECASE,
)
_INDEX = r"(?:_(?:\{[^{}]*\}|[0-9A-Za-z]))"
_LABEL = re.compile(
    rf"[A-Za-z]{_INDEX}?'*(?:\^\s*\{{\s*(?:-\s*1|\([0-9a-z]+\))\s*\}})?(?:\s*\(.*\))?|(?:[A-Z]'*{_INDEX}?)+", re.DOTALL
)
_LETTER_OF = dict(zip(["alpha", "beta", "gamma", "theta", "phi", "varphi", "lambda", "mu"], "qQjJVvYZ", strict=True))
"""Greek letters as ones that are hardly ever unknowns."""
_GREEK = re.compile(rf"\\({'|'.join(_LETTER_OF)})(?![A-Za-z])")
_ARITHMETIC = re.compile(
    r"\\(?:[dtc]?frac|sqrt|cdot|times|div|left|right|log|ln|lg)(?![A-Za-z])|[0-9+\-*/^{}()\[\].!|\s]|_(?:\{[0-9]+\}|[0-9])"
)
_NUMERAL = re.compile(r"-?(?:[0-9]+|(?=\.[0-9]))(?:\.([0-9]*))?\.?")
_MODULUS = re.compile(r"\|\s*[A-Za-jo-su-wz]\s*\|")  # of a complex number, a vector or a set
_MULTIPLE = re.compile(
    r"(?:-\s*[0-9.]*|[0-9.]+|-?\s*\\[dt]?frac\s*\{[0-9]+\}\s*\{[0-9]+\})\s*(?:\\(?:cdot|times)(?![A-Za-z]))?\s*(?P<object>.+)"
)
_QUOTIENT = re.compile(r"\\[dt]?frac\s*\{(?P<top>[^{}]+)\}\s*\{(?P<bottom>[^{}]+)\}")
_OBJECT = re.compile(r"\\[A-Za-z]+\s*(?:\{[^{}]*\}|\s[A-Za-z]|\([^()]*\))")


def is_label(text: str) -> bool:
    """Whether a left side names a quantity: a letter with its index, prime or argument, or points such as `AA_1`."""
    name = text.strip()
    applied = name[:1] in name[1:] and re.match(r"[A-Za-z]\s*\(", name) is not None  # `x(x+1)` is a product
    return _LABEL.fullmatch(name) is not None and not applied


def is_unsolved(text: str) -> bool:
    """Whether a tidied answer is an equation in one unknown that is not solved for it, such as `2x = 3`, `x^2 = 3`,
    `3 = \\sqrt{x}` or `x = x + 1`. An expression in several letters (`m+n = 3`) is a name."""
    plain = _GREEK.sub(lambda match: _LETTER_OF[match[1]], text)
    *left, right = [part.strip() for part in SIGN.split(plain)]
    if not left:
        return False
    if DOUBT.search(left[0]) or _NO_NAME.search(left[0]):
        return True
    if any(map(is_label, left)):
        return any(len(part) == 1 and re.search(rf"(?<![A-Za-z\\_{{]){part}(?![A-Za-z_({{'])", right) for part in left)
    return any(_in_one_unknown(side) or _is_multiple(side) for side in left) or (
        value(left[0]) is not None and _in_one_unknown(right) and right != ""
    )


def _is_multiple(side: str) -> bool:
    """Whether a side is a multiple, a part or the inverse of something with a name, such as `2f(x)` or `-\\vec{v}`."""
    if value(side) is not None:
        return False
    if quotient := _QUOTIENT.fullmatch(side):
        parts = (quotient["top"], quotient["bottom"])
        return any(map(is_label, parts)) and any(value(part) is not None for part in parts)
    multiple = _MULTIPLE.fullmatch(side)
    return bool(multiple and (is_label(multiple["object"]) or _OBJECT.fullmatch(multiple["object"])))


def _in_one_unknown(side: str) -> bool:
    letters = _ARITHMETIC.sub("", side)
    if not letters.isalpha() or not letters.isascii() or is_label(side) or _MODULUS.search(side):
        return False
    unknowns = set(letters) - {"e", "i"} or set(letters) - {"i"}
    return len(unknowns) == 1


def contradicts(text: str) -> bool:
    """Whether a tidied chain such as `203 = 204`, `3+5 = 7` or `\\sqrt{2} \\approx 1.5` holds different values."""
    if _ABOUT.search(text):
        pieces = [part.strip() for part in _ABOUT.split(text)]
        return any(map(contradicts, pieces)) or any(not _is_about(one, other) for one, other in pairwise(pieces))
    parts = [(part.strip(), found) for part in SIGN.split(text) if (found := value(part)) is not None]
    return any(not (same_value(parts[0][1], found) or _rounded(parts[0][0], part)) for part, found in parts[1:])


def _rounded(one: str, other: str) -> bool:
    """Whether one of two parts is a decimal to which the other, no numeral, rounds."""
    if _NUMERAL.fullmatch(one) and _NUMERAL.fullmatch(other):
        return False
    return any("." in shown and _is_about(exact, shown) for exact, shown in ((one, other), (other, one)))


def approximation(text: str) -> tuple[str, str] | None:
    """The value of which a tidied answer gives an approximation, empty where there is none but a name, and what it ends
    with; None if it gives none."""
    first, *others = [part.strip() for part in _ABOUT.split(text)]
    return ("" if is_label(first) else first, others[-1]) if others else None


def _is_about(one: str, other: str) -> bool:
    """Whether `other` is a numeral to which the value of `one` rounds, or of which it is the beginning."""
    left = SIGN.split(one)[-1].strip()
    if not left or is_label(left):
        return True
    shown, exact = _NUMERAL.fullmatch(other), value(left)
    if shown is None or exact is None:
        return False
    unit = 10.0 ** -len(shown[1] or "")
    error = abs(float(exact)) - abs(float(shown[0].rstrip(".")))
    return (exact < 0) == (float(shown[0]) < 0) and -0.5001 * unit <= error < 0.9999 * unit
