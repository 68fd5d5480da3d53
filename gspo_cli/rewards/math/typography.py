r"""Remove the typography of an answer: Unicode signs become LaTeX, and spacing, fonts and delimiters go.

`½` becomes `\frac{1}{2}`, `x²` becomes `x^{2}`, `0.\overline{3}` becomes `\frac{1}{3}`, `{\bf 42}` becomes `{ 42}`.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_PAIRS = r"(?<!\\)(?P<rows>(?:\\\\)*)"  # row ends before the command
_END = r"(?![A-Za-z])"
_SPACING = re.compile(
    rf"(?<=,)\\,|{_PAIRS}\\(?:[;: ]|(?:quad|qquad|displaystyle){_END}|[hv]space\*?\s*\{{[^{{}}]*\}})|~"
)
_NO_SPACE = re.compile(rf"{_PAIRS}\\(?:[,!]|(?:left|right)(?:\.|{_END}))")
_APART = re.compile(
    r"(?<=\d)\s*(?:\\(?:,(?!\d{3}(?!\d))|(?:left|right)(?:\.|(?![A-Za-z]))))+\s*(?=\d)"
)  # `2\,3` is not 23
_THOUSANDS = re.compile(r"(?<=\d)\s*(?:,\\!|\{,\})\s*(?=\d{3}(?!\d))")
_SPACED_THOUSANDS = re.compile(r"(?<![\d.,/^_}])[1-9]\d{0,2}(?: \d{3}){2,}(?![\d,]|\s*[/\\(^]|\.\d{1,2} \d)")
_POINT = re.compile(r"(?<=\d)\{\.\}(?=\d)")
_SLASHES = re.compile(r"\\\\+(?=[A-Za-z{}(),!;%$])")
_FONT = re.compile(
    r"\\(?:bf|it|rm|sf|tt|bfseries|boldmath|tiny|scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge|Huge"
    rf"|textstyle|scriptstyle){_END}"
)
_COLOR = re.compile(r"\\(?:text)?color\s*\{[a-z]+\}")
_ANNOUNCED = re.compile(
    rf"(?:\\(?:therefore|implies|Rightarrow){_END}\s*|\\text\{{\s*(?:the )?(?:final )?answer(?: is)?\s*[:=]?\s*\}}\s*)",
    re.IGNORECASE,
)
_NAMES = {
    r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lbrack": "[", r"\rbrack": "]", r"\bigcup": r"\cup",
    r"\varnothing": r"\emptyset", r"\colon": ":",
}  # fmt: skip
_SYNONYM = re.compile(r"\\(?:[lr]brac[ek]|bigcup|varnothing|colon)(?![A-Za-z])\s?")
_VECTOR = re.compile(r"\\langle(?![A-Za-z])(?P<entries>(?:(?!\\[lr]angle).)*,(?:(?!\\[lr]angle).)*)\\rangle")
_NO_ELEMENT = re.compile(r"\\\{\s*\\\}")
_ROW_SPACE = re.compile(r"(?<=\\\\)\s*\[\s*-?\d*\.?\d+\s*(?:pt|em|ex|mm|cm|in)\s*\]")
_DIFFERENCE = re.compile(r"\\backslash\s*(?=\\\{)")
_BLACKBOARD = re.compile(r"\\mathbb\s+(?P<letter>[A-Z])(?![A-Za-z])")
_ALL_REALS = re.compile(
    r"\\(?:text|textbf|mathrm)\s*\{\s*all (?:the )?real(?:s| numbers)\s*\.?\s*\}\s*\.?", re.IGNORECASE
)
_REPEATING = re.compile(
    r"(?<![\d.,}\s])(?P<before>(?:^|[^\d}])\s*)?(?P<whole>\d{1,12})?\.(?P<fixed>\d{0,12})"
    r"(?:\\(?:overline|bar)\s*(?:\{(?P<line>\d{1,12})\}|(?P<one>\d))"
    r"|\\dot\s*\{?(?P<first>\d)\}?(?:(?P<middle>\d{0,12})\\dot\s*\{?(?P<last>\d)\}?)?)"
    r"(?![\d{]|\.(?:\.|\d)|\s*(?:\d|\\(?:overline|bar|dot|[lcd]?dots)))"
)
_LETTERS = range(0x1D400, 0x1D800)  # mathematical bold, italic, ...
_WIDE = range(0xFF01, 0xFF5F)  # forms as wide as a Chinese character
_LATEX = {
    "\u2212": "-", "\uff0d": "-", "\ufe63": "-", "\u2044": "/", "\u2215": "/", "\u221e": r"\infty ", "\u222a": r"\cup ",
    "\u2229": r"\cap ", "\u2205": r"\emptyset ", "\u03c0": r"\pi ", "\u00b7": r"\cdot ", "\u22c5": r"\cdot ",
    "\u2219": r"\cdot ", "\u00d7": r"\times ", "\u2234": r"\therefore ", "\u21d2": r"\Rightarrow ",
}  # fmt: skip
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉"
_PLAIN = str.maketrans(_RAISED + _LOWERED, "0123456789+-0123456789")
_SMALL_FRACTION = re.compile(rf"([{_RAISED[:10]}]+)[\u2044\u2215/]([{_LOWERED}]+)")
_RUN = re.compile(f"[{_RAISED}]+")
_ROOT = re.compile(r"√\s*(?:(?=\{)|\((?P<round>[^()]*)\)|(?P<digits>\d+(?:\.\d+)?)|(?P<letter>[A-Za-z]))")
_DASH = re.compile(r"(?:(?<=[(\[{,=])|^)\s*\u2013(?=\s*[\d.\\A-Za-z])")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_BLANK = re.compile(r"[\t\n\r\f\v]")


@lru_cache(maxsize=1024)
def tidy(text: str) -> str:
    """Blanks become spaces, decimal digits of any script ASCII, mathematical signs LaTeX, repeating decimals fractions,
    and doubled backslashes single ones; invisible characters, TeX's spacing, fonts, colours and its delimiters around
    the whole are dropped. Superscript digits become an exponent: they are not digits of the number.
    """
    text = _CONTROL.sub("", _BLANK.sub(" ", text)) if text.isascii() else _to_latex(text)
    text = _POINT.sub(".", _THOUSANDS.sub("", text))
    text = _without_commands(text) if "\\" in text else text.replace("~", " ").strip()
    if text.startswith("**") and text.endswith("**") and len(text) > 4:
        text = text[2:-2].strip()
    return _SPACED_THOUSANDS.sub(lambda match: match[0].replace(" ", ""), text)


def _without_commands(text: str) -> str:
    if r"\\begin" in text:
        text = text.replace("\\\\", "\\")
    elif r"\begin" not in text:  # its rows end in double backslashes
        text = _SLASHES.sub(r"\\", text)
    text = _SPACING.sub(lambda match: f"{match['rows'] or ''} ", text)
    text = _NO_SPACE.sub(r"\g<rows>", _APART.sub(" ", text)).strip()
    for opening, closing in ((r"\(", r"\)"), (r"\[", r"\]")):
        if text.startswith(opening) and text.endswith(closing) and len(text) > 3:
            text = text[2:-2].strip()
    text = _SYNONYM.sub(lambda match: _NAMES[match[0].strip()] + (" " if match[0].endswith(" ") else ""), text)
    if (vector := _VECTOR.fullmatch(text)) is not None:
        text = f"({vector['entries']})"
    text = _BLACKBOARD.sub(r"\\mathbb{\g<letter>}", text)
    text = _DIFFERENCE.sub(r"\\setminus ", _ROW_SPACE.sub("", text))
    if _ALL_REALS.fullmatch(text):
        return r"\mathbb{R}"
    text = _NO_ELEMENT.sub(r"\\emptyset", _COLOR.sub("", _FONT.sub("", text)))
    if announced := _ANNOUNCED.match(text):
        text = text[announced.end() :]
    return _REPEATING.sub(_as_fraction, text).strip()


def _as_fraction(match: re.Match[str]) -> str:
    fixed, line = match["fixed"], match["line"] or match["one"]
    repeated = line or match["first"] + (match["middle"] or "") + (match["last"] or "")
    scale, nines = 10 ** len(fixed), 10 ** len(repeated) - 1
    top = int((match["whole"] or "0") + fixed) * nines + int(repeated)
    return rf"{match['before'] or ''}\frac{{{top}}}{{{scale * nines}}}"


def _to_latex(text: str) -> str:
    """ASCII for what has a spelling in LaTeX. Any other character stays."""
    text = _SMALL_FRACTION.sub(lambda m: rf"\frac{{{m[1].translate(_PLAIN)}}}{{{m[2].translate(_PLAIN)}}}", text)
    out = []
    for char in text:
        kind, code = unicodedata.category(char), ord(char)
        if char in "\t\n\r\f\v" or kind in ("Zs", "Zl", "Zp"):
            out.append(" ")
        elif kind == "Nd":
            out.append(str(unicodedata.decimal(char)))
        elif kind in ("Cf", "Cc"):
            continue
        elif char in _LATEX:
            out.append(_LATEX[char])
        elif code in _LETTERS or code in _WIDE:
            plain = unicodedata.normalize("NFKC", char)
            out.append(_LATEX.get(plain, plain))
        elif kind == "No" and len(parts := unicodedata.normalize("NFKC", char).split("\u2044")) == 2 and parts[1]:
            out.append(rf"\frac{{{parts[0]}}}{{{parts[1]}}}")
        else:
            out.append(char)
    text = _RUN.sub(lambda match: f"^{{{match[0].translate(_PLAIN)}}}", _DASH.sub("-", "".join(out)))
    return _ROOT.sub(
        lambda m: rf"\sqrt{{{found}}}" if (found := m["round"] or m["digits"] or m["letter"]) else r"\sqrt", text
    )
