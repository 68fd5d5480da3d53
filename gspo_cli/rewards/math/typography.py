r"""Remove the typography of an answer: Unicode signs become LaTeX, and spacing, fonts and delimiters go.

`½` becomes `\frac{1}{2}`, `x²` becomes `x^{2}`, `0.\overline{3}` becomes `\frac{1}{3}`, `{\bf 42}` becomes `{ 42}`;
`\dfrac\pi4` and `{\pi\over4}` become `\frac{\pi}{4}`, `\tan^{-1}` becomes `\arctan`, `1.3e3` becomes `1.3\cdot 10^{3}`.
"""

import re
import unicodedata
from functools import lru_cache

_PAIRS = r"(?<!\\)(?P<rows>(?:\\\\)*)"  # row ends before the command
_END = r"(?![A-Za-z])"
_SPACED_THOUSANDS = re.compile(r"(?<![\d.,/^_}])[1-9]\d{0,2}(?: \d{3}){2,}(?![\d,]|\s*[/\\(^]|\.\d{1,2} \d)")
_INFIX = re.compile(rf"\\(?P<name>over|choose){_END}\s*")
_PREFIX = {"over": r"\frac", "choose": r"\binom"}
_TAKES = re.compile(  # arguments: two, or one
    rf"\\(?:(?P<two>(?:[dtc]?frac|[dt]?binom){_END})|sqrt{_END}(?:\s*\[[^\[\]]*\])?)\s*|\^\s*(?=\\(?:[dtc]?frac|sqrt))"
)
_COMMAND = re.compile(
    r"\\(?:(?P<two>[dtc]?frac|[dt]?binom)|(?P<one>sqrt|text[a-z]*|math[a-z]*|mbox)|[A-Za-z]+)(?![A-Za-z])"
)
_SLASHES = re.compile(r"\\\\+(?=[A-Za-z{}(),!;%$])")
_RULES = [
    # the marks within numerals: `0{,}5` is the number that `0,5` may be
    (r"(?<=\d)(?<!\b0)\s*(?:,\\!|\{,\})\s*(?=\d{3}(?!\d))", ""),
    (r"(?<=\d)\{[.,]\}(?=\d)", "."),
    (r"(?<=\d)\{:\}(?=\d)", ":"),
]
_COMMAND_RULES = [
    (rf"(?<=,)\\,|{_PAIRS}\\(?:[;: ]|(?:quad|qquad|displaystyle){_END}|[hv]space\*?\s*\{{[^{{}}]*\}})|~", r"\g<rows> "),
    (rf"(?<=\d)\s*(?:\\(?:,(?!\d{{3}}(?!\d))|(?:left|right)(?:\.|{_END})))+\s*(?=\d)", " "),  # `2\,3` is not 23
    (rf"{_PAIRS}\\(?:[,!]|(?:left|right)(?:\.|{_END}))", r"\g<rows>"),
    (r"^\s+|\s+$", ""),
    (r"^\\\(\s*(.*?)\s*\\\)$", r"\1"),
    (rf"\\lbrace{_END}", r"\\{"),
    (rf"\\rbrace{_END}", r"\\}"),
    (rf"\\bigcup{_END}", r"\\cup"),
    (rf"\\varnothing{_END}", r"\\emptyset"),
    (rf"\\colon{_END}", ":"),
    (rf"\\lg{_END}", r"\\log_{10}"),
    (rf"^\\langle{_END}((?:(?!\\[lr]angle).)*,(?:(?!\\[lr]angle).)*)\\rangle$", r"(\1)"),
    (rf"\\mathbb\s+([A-Z]){_END}", r"\\mathbb{\1}"),
    (r"(?<=\\\\)\s*\[\s*-?\d*\.?\d+\s*(?:pt|em|ex|mm|cm|in)\s*\]", ""),
    (r"(?:\\backslash|(?<=\\mathbb\{R\})\s*-)\s*(?=\\\{)", r"\\setminus "),
    (r"(?i:^\\(?:text|textbf|mathrm)\s*\{\s*all (?:the )?real(?:s| numbers)\s*\.?\s*\}\s*\.?$)", r"\\mathbb{R}"),
    (  # fonts
        r"\\(?:bf|it|rm|sf|tt|bfseries|boldmath|tiny|scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge"
        rf"|Huge|textstyle|scriptstyle){_END}",
        "",
    ),
    (r"\\(?:text)?color\s*\{[a-z]+\}", ""),
    (r"\\\{\s*\\\}", r"\\emptyset"),
    (rf"^\\(?:therefore|implies|Rightarrow){_END}\s*", ""),
    (r"(?i:^\\text\{\s*(?:the )?(?:final )?answer(?: is)?\s*[:=]?\s*\}\s*)", ""),
    (r"\\(sin|cos|tan|cot|sec|csc)\s*\^\s*\{\s*-\s*1\s*\}", r"\\arc\1 "),
]
_SCIENTIFIC = re.compile(r"(?<![\w.}])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d{1,3})(?![\w.^])")
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
    "±": r"\pm ", "∓": r"\mp ", "≡": r"\equiv ", "≈": r"\approx ", "≃": r"\simeq ", "≠": r"\ne ",
    "≤": r"\le ", "≥": r"\ge ",
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
    text = _apply(_RULES, text)
    text = _without_commands(text) if "\\" in text else text.replace("~", " ").strip()
    text = _SCIENTIFIC.sub(r"\1\\cdot 10^{\2}", text).rstrip(",; ")
    if text.startswith("**") and text.endswith("**") and len(text) > 4:
        text = text[2:-2].strip()
    return _SPACED_THOUSANDS.sub(lambda match: match[0].replace(" ", ""), text)


def _apply(rules: list[tuple[str, str]], text: str) -> str:
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)
    return text


def _without_commands(text: str) -> str:
    if r"\\begin" in text:
        text = text.replace("\\\\", "\\")
    elif r"\begin" not in text:  # its rows end in double backslashes
        text = _SLASHES.sub(r"\\", text)
    text = _with_braces(_without_infix(_apply(_COMMAND_RULES, text)))
    return _REPEATING.sub(_as_fraction, text).strip()


def closes(text: str) -> int:
    """Where the bracket that a text starts with is closed; -1 if nowhere."""
    depth = 0
    for index, char in enumerate(text):
        depth += (char in "{([") - (char in "})]")
        if not depth:
            return index
    return -1


def _without_infix(text: str) -> str:
    r"""`a \over b` as `\frac{a}{b}`; `a` and `b` reach to the ends of the group, or to a comma or an equals sign."""
    while found := _INFIX.search(text):
        start, end = found.start(), found.end()
        start -= _reach(text[:start][::-1], ")]}", "([{")
        end += _reach(text[end:], "([{", ")]}")
        top, bottom = text[start : found.start()].strip(), text[found.end() : end].strip()
        if re.search(r"(?:^|[=,(])\s*\{$", text[:start]) and re.match(r"\}\s*(?:$|[=,)])", text[end:]):
            start, end = start - 1, end + 1
        text = f"{text[:start]}{_PREFIX[found['name']]}{{{top}}}{{{bottom}}}{text[end:]}"
    return text


def _reach(text: str, opening: str, closing: str) -> int:
    depth = 0
    for index, char in enumerate(text):
        depth += (char in opening) - (char in closing)
        if depth < 0 or (not depth and char in ",="):
            return index
    return len(text)


def _with_braces(text: str) -> str:
    r"""`\dfrac\pi4` as `\frac{\pi}{4}`, `\sqrt2` as `\sqrt{2}` and `2^\frac12` as `2^{\frac{1}{2}}`."""
    for found in reversed(list(_TAKES.finditer(text))):
        read, rest = found[0].strip(), text[found.end() :]
        for _ in range(2 if found["two"] else 1):
            rest = rest.lstrip()
            end = _argument(rest)
            read += rest[:end] if rest[:1] == "{" or not end else f"{{{rest[:end]}}}"
            rest = rest[end:]
        text = text[: found.start()] + re.sub(r"^\\[dtc](?=frac|binom)", r"\\", read) + rest
    return text


def _argument(text: str) -> int:
    """The length of the argument that a text starts with: a group, a letter or digit, or a command with its groups."""
    if text[:1] == "{":
        return closes(text) + 1
    command = _COMMAND.match(text)
    if command is None:
        return int(text[:1].isalnum())
    end = command.end()
    for _ in range(2 if command["two"] else 1 if command["one"] else 0):
        end += closes(text[end:]) + 1 if text[end : end + 1] == "{" else 0
    return end


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
