"""An answer's text without its typography: what two writers of the same answer may do differently.

Nothing here computes, and no answer longer than `MAX_LENGTH` is looked at.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Set

from gspo_cli.rewards.units import NO_UNITS, UNITS

MAX_LENGTH = 300  # characters

_PAIRS = r"(?<!\\)(?P<rows>(?:\\\\)*)"  # ends of rows before the command
_SPACING = re.compile(rf"(?<=,)\\,|{_PAIRS}\\(?:[;: ]|(?:quad|qquad|displaystyle)(?![A-Za-z]))|~")
_NO_SPACE = re.compile(rf"{_PAIRS}\\(?:[,!]|(?:left|right)(?![A-Za-z]))")
_THOUSANDS = re.compile(r"(?<=\d)\s*(?:,\\!|\{,\})\s*(?=\d{3}(?!\d))")
_SLASHES = re.compile(r"\\\\+(?=[A-Za-z{}(),!;%$])")
_WRAPPER = r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox|boxed|fbox)\s*"
_WRAPPERS = re.compile(rf"{_WRAPPER}(?=\{{)")
_COMPARISON = re.compile(
    r"[<>≤≥≠±∓]|!=|/=|\\not(?![A-Za-z])|\\(?:le|leq|leqslant|ge|geq|geqslant|ne|neq|lt|gt|pm|mp)(?![A-Za-z])"
)
_SEVERAL = re.compile(r"[,;]|\\(?:lor|vee|land|wedge)(?![A-Za-z])|\b(?:or|and)\b")
_EQUIVALENT = re.compile(r"\\equiv(?![A-Za-z])|≡")
_LEADING = re.compile(r"(?:\\approx(?![A-Za-z])|≈|\\?\$|[€£¥])\s*")
_TRAILING = re.compile(
    r"\s*(?:\\pmod\s*\{[^{}]*\}|_(?:\{10\}|10)|\^?\s*\{?\s*(?:\\circ|\\degrees?|°)\s*\}?|\\?[%$]|[€£¥]|\.)$"
)
_POWER = r"(?:\s*\^\s*(?:[23]|\{\s*[23]\s*\})|[²³])?"
_WORDS = rf"\(?(?P<words>[A-Za-z][A-Za-z .'/-]*)\)?{_POWER}"
_WORDS_IN_TEXT = re.compile(rf"{_WRAPPER}\{{\s*(?:{_WORDS})?\s*\}}{_POWER}$")
_WORDS_BARE = re.compile(rf"(?<=[\d}}])\s+{_WORDS}$")


def tidy(text: str) -> str:
    """The same characters however they were written: blanks are spaces, decimal digits of any script are ASCII, U+2212
    is a minus, what is invisible is gone, TeX's spacing too, and doubled backslashes are one.

    Superscript digits stay what they are: an exponent is no digit of the number.
    """
    out = []
    for char in text:
        kind = unicodedata.category(char)
        if char in "\t\n\r\f\v" or kind in ("Zs", "Zl", "Zp"):
            out.append(" ")
        elif kind == "Nd":
            out.append(str(unicodedata.decimal(char)))
        elif kind not in ("Cf", "Cc"):
            out.append("-" if char == "\u2212" else char)
    text = "".join(out)
    if r"\\begin" in text:
        text = text.replace("\\\\", "\\")
    elif r"\begin" not in text:  # whose rows end in a double backslash
        text = _SLASHES.sub(r"\\", text)
    text = _SPACING.sub(lambda found: f"{found['rows'] or ''} ", _THOUSANDS.sub("", text))
    return _NO_SPACE.sub(r"\g<rows>", text).strip()


def is_comparison(text: str) -> bool:
    """Whether a tidied text is an inequality, or leaves its sign open."""
    return _COMPARISON.search(text) is not None


def right_side(text: str) -> str:
    """What follows the last `=` or `\\equiv` of a tidied equation or chain of them; all of anything else."""
    left, sign, right = _EQUIVALENT.sub("=", text).rpartition("=")
    if not sign or is_comparison(text):
        return text
    several = "=" in left and _SEVERAL.search(re.sub(r"\([^()]*\)", "", left))
    return text if several else right.strip()


def bare(text: str) -> str:
    """A tidied text without what is written around a number: wrappers, currency, degrees, percent, units, a final full
    stop, `\\pmod{..}`, the subscript of base ten."""
    for opening, closing in ((r"\(", r"\)"), (r"\[", r"\]")):
        if text.startswith(opening) and text.endswith(closing):
            text = text[2:-2].strip()
    before = None
    while text != before:
        before = text
        text = _TRAILING.sub("", _LEADING.sub("", text) if _LEADING.match(text) else text)
        text = _without(_WORDS_IN_TEXT, text, lambda words: not words & NO_UNITS)
        text = _without(_WORDS_BARE, unwrap(text), lambda words: words <= UNITS)
    return text


def unwrap(text: str) -> str:
    """Without `\\text`, `\\mathrm`, `\\boxed` and the like, and without braces around all of it."""
    text = _WRAPPERS.sub("", text).strip()
    while text.startswith("{") and text.endswith("}") and _closes(text) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def same_text(one: str, other: str) -> bool:
    """Whether two answers are written alike, typography apart; words may differ in case."""
    if max(len(one), len(other)) > MAX_LENGTH:
        return one.strip() == other.strip()
    return _canonical(one) == _canonical(other)


def _canonical(text: str) -> str:
    text = unwrap(tidy(text).replace("$", "")).rstrip(".")
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = re.sub(r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])", "", text)
    while (shorter := re.sub(r"\{([0-9A-Za-z])\}", r"\1", text)) != text:
        text = shorter
    return text.lower() if re.fullmatch(r"[A-Za-z][A-Za-z ]+", text) else text


def _without(pattern: re.Pattern[str], text: str, may_go: Callable[[Set[str]], bool]) -> str:
    """Without the words at the end, if they are ones that may go."""
    found = pattern.search(text)
    if found is None or not may_go(set(re.findall("[a-z]+", (found["words"] or "").lower()))):
        return text
    return text[: found.start()].strip()


def _closes(text: str) -> int:
    """Where the brace that a text starts with is closed; -1 if it is not."""
    depth = 0
    for place, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if not depth:
            return place
    return -1
