r"""Rewrite what computer algebra would misread, in a form that it reads.

`\sin 45^\circ` gets its angle in radians, `x < 3 \text{ or } x > 5` becomes a union of intervals, and
`1:2:3` becomes the shares (1/6, 2/6, 3/6).
"""

import re

from gspo_cli.rewards.math.arithmetic import value

_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_DEGREES = re.compile(
    r"(?P<number>\d+(?:\.\d+)?)\s*(?:\^?\s*(?P<brace>\{\s*)?(?:\\circ|\\degree)(?![A-Za-z])(?(brace)\s*\})|°)"
)
_NATURAL_LOG = re.compile(r"\\log\s*_\s*\{?\s*(?:\\mathrm\s*\{\s*e\s*\}|e)(?![A-Za-z])\s*\}?")
_OR = re.compile(r"\\(?:text|mathrm|mbox)\s*\{\s*or\s*\}|\\(?:lor|vee)(?![A-Za-z])|\bor\b")
_RELATION = re.compile(r"(\\(?:leqslant|leq|le|lt|geqslant|geq|ge|gt)(?![A-Za-z])|[<>])")
_STRICT = ("<", ">", r"\lt", r"\gt")
_AND = re.compile(r"\\(?:text|mathrm|mbox)\s*\{\s*and\s*\}|\band\b")
_ASSIGNMENT = re.compile(r"\s*([A-Za-z]|\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi))\s*=\s*([^=<>]+?)\s*")
_MIXED = re.compile(  # not `x^2\frac{1}{2}` or `a_1\frac{1}{2}`
    r"(?<![\d.^_}A-Za-z\\])(?P<whole>\d{1,9})\s*(?P<part>\\frac\{\s*(?P<top>\d{1,9})\s*\}\{\s*(?P<bottom>\d{1,9})\s*\})(?!\s*[\^!])"
)
_WORD_OF_CONDITION = (
    r"\\(?:leq|le|geq|ge|lt|gt|neq?|frac|sqrt|pi|pm|in|mathbb\{R\}|infty|text\{ (?:or|and) \})(?![A-Za-z])"
)
_BUILDER = re.compile(
    r"\\\{\s*(?P<name>[A-Za-z])\s*(?:\\in\s*\\mathbb\s*\{?\s*R\s*\}?\s*)?(?:\\(?:mid|vert)(?![A-Za-z])|\||:)"
    rf"(?P<condition>(?:(?![A-Za-z]|\\[{{}}]).|{_WORD_OF_CONDITION}|(?P=name)(?![A-Za-z]))+)\\\}}"
)
_NOT_EQUAL = re.compile(r"\\neq?(?![A-Za-z])|!=")
_REAL = re.compile(r"[A-Za-z]\s*\\in\s*\\mathbb\s*\{?\s*R\s*\}?\s*,")
_MODULUS = re.compile(
    r"\(?\s*\\(?:[bp]?mod(?![A-Za-z])|(?:text|mathrm)\s*\{\s*\(?\s*mod\s*\})\s*(?:\{(?P<braced>[^{}]*)\}|(?P<digits>\d+))\s*\)?"
)
_SIGN_OF_TWO = re.compile(r"\\(?P<sign>pm|mp)(?![A-Za-z])")
_CONSTANT = re.compile(r"(?P<before>.*)\+\s*(?:\\text\s*\{\s*const(?:ant|\.)?\s*\}|(?P<name>[cKk]))")
_COMMAS = re.compile(r",\s*(?=,)")


def has_angle(text: str) -> bool:
    """Whether the degrees of a tidied answer belong to a trigonometric function, and are no unit."""
    return _TRIGONOMETRY.search(text) is not None and _DEGREES.search(text) is not None


def rewrite(text: str) -> str:
    """A tidied answer without its units, as computer algebra reads it."""
    if _TRIGONOMETRY.search(text):
        text = _DEGREES.sub(lambda match: rf"(\frac{{{match['number']}\pi}}{{180}})", text)
    text = as_two(with_sums(text))
    text = _COMMAS.sub("", _NATURAL_LOG.sub(r"\\ln ", text))
    return as_shares(re.sub(r"\\equiv(?![A-Za-z])", "=", text))


def as_two(text: str) -> str:
    r"""`\frac{1 \pm \sqrt{5}}{2}` as its two values; any other text unchanged. Computer algebra reads the sign only
    outside of brackets."""
    signs = list(_SIGN_OF_TWO.finditer(text))
    if len(signs) != 1 or "," in text or r"\{" in text or r"\begin" in text:
        return text
    before, after = text[: signs[0].start()], text[signs[0].end() :]
    if all(before.count(left) == before.count(right) for left, right in ("{}", "()")) or "[" in before:
        return text
    first, second = "+-" if signs[0]["sign"] == "pm" else "-+"
    return f"{before}{first}{after}, {before}{second}{after}"


def with_sums(text: str) -> str:
    r"""A text in which `3\frac{1}{2}` is a sum; an improper fraction is a factor."""
    return _MIXED.sub(lambda m: rf"({m['whole']}+{m['part']})" if 0 < int(m["top"]) < int(m["bottom"]) else m[0], text)


def is_ratio(text: str) -> bool:
    """Whether a text is a ratio of three or more parts, which computer algebra would divide one by the other."""
    return text.count(":") > 1


def as_shares(text: str) -> str:
    """A ratio of three or more parts as the share of each in the whole; any other text unchanged."""
    inner = text[1:-1] if text[:1] + text[-1:] in ("()", "[]") else text
    parts = [part.strip() for part in inner.split(":")]
    if not is_ratio(text) or "=" in text or any(not part or part.count("(") != part.count(")") for part in parts):
        return text
    whole = "+".join(f"({part})" for part in parts)
    return "(" + ", ".join(rf"\frac{{{part}}}{{{whole}}}" for part in parts) + ")"


def condition(text: str) -> str:
    r"""The condition of a set such as `\{x \mid 1 < x < 3\}`, which is an inequality; any other text unchanged."""
    found = _BUILDER.fullmatch(text)
    is_relation = found and (_RELATION.search(found["condition"]) or _NOT_EQUAL.search(found["condition"]))
    return found["condition"].strip() if found and is_relation else text


def as_residues(gold: str, answer: str) -> tuple[str, str]:
    r"""Where the gold answer has a modulus, in any spelling, both with `\pmod{7}`."""
    if not _MODULUS.search(gold):
        return gold, answer
    first, second = (_MODULUS.sub(lambda m: rf"\pmod{{{m['braced'] or m['digits']}}}", side) for side in (gold, answer))
    return first, second


def with_constant(gold: str, answer: str) -> str:
    """The answer with its constant of integration named as in the gold answer, unless the name occurs otherwise."""
    found = _CONSTANT.fullmatch(answer) if re.search(r"\+\s*C$", gold) else None
    if not found or (found["name"] and found["name"] in re.sub(r"\\[A-Za-z]+", "", found["before"])):
        return answer
    return found["before"] + "+C"


def as_unions(gold: str, answer: str) -> tuple[str, str]:
    """Inequalities of one variable joined by `or`, and chains such as `1 < x \\le 2`, as a union of intervals; any
    other text unchanged.

    Where both are such, but of different variables, nothing changes: intervals have no variable.
    """
    (name, union), (other, other_union) = _union(gold), _union(answer)
    return (gold, answer) if name and other and name != other else (union, other_union)


def _union(text: str) -> tuple[str, str]:
    """The variable, empty if the text is no such union, and the text or union."""
    if excluded := _excluded(text):
        return excluded
    parts = _OR.split(text)
    several = len(parts) > 1 or len(_RELATION.findall(text)) == 2
    found = [_interval(part.strip(" ,$")) or _overlap(part) for part in parts] if several else []
    names = {each[0] for each in found if each}
    if not found or None in found or len(names) != 1:
        return "", text
    return names.pop(), r"\cup ".join(each[1] for each in found if each)


def _excluded(text: str) -> tuple[str, str] | None:
    r"""The variable of `x \ne 3, x \ne 5`, and all numbers but these."""
    parts = [_NOT_EQUAL.split(part) for part in _AND.sub(",", _REAL.sub("", text)).split(",")]
    names = {part[0].strip() for part in parts if len(part) == 2}
    if len(parts[0]) != 2 or len(names) != 1 or any(len(part) > 2 or re.search("[<>=]", part[-1]) for part in parts):
        return None
    values = [re.sub(r"\\pm(?![A-Za-z])(.*)", r"\1,-(\1)", part[-1]) for part in parts]
    return names.pop(), rf"\mathbb{{R}}\setminus\{{{','.join(values)}\}}"


def _overlap(text: str) -> tuple[str, str] | None:
    """The variable and interval of `x > 1 \\text{ and } x < 3`, whose bounds are numbers in this order."""
    pieces = [piece.strip(" $") for piece in _AND.split(text)]
    found = [each for piece in pieces if (each := _interval(piece))]
    if len(pieces) != 2 or len(found) != 2 or found[0][0] != found[1][0]:
        return None
    upwards, downwards = sorted((each[1] for each in found), key=lambda interval: r"-\infty" in interval)
    low, high = upwards[1:].partition(",")[0], downwards[:-1].rpartition(",")[2]
    bounds = value(low), value(high)
    if r"\infty" in low + high or bounds[0] is None or bounds[1] is None or not bounds[0] < bounds[1]:
        return None
    return found[0][0], f"{upwards[0]}{low},{high}{downwards[-1]}"


def _interval(text: str) -> tuple[str, str] | None:
    """The variable of `x < 3` or `1 < x \\le 2` and the interval."""
    pieces = [piece.strip() for piece in _RELATION.split(text)]
    if len(pieces) not in (3, 5) or not all(pieces):
        return None
    if len(pieces) == 3:  # `x < 3` is `-\\infty < x < 3`
        strict, behind, ahead = ("<", r"-\infty", r"\infty") if _is_less(pieces[1]) else (">", r"\infty", r"-\infty")
        named = len(pieces[0]) == 1 and pieces[0].isalpha()
        pieces = [behind, strict, *pieces] if named else [*pieces, strict, ahead]
    if not _is_less(pieces[1]):
        pieces.reverse()
    low, first, name, second, high = pieces
    if _is_less(first) != _is_less(second) or len(name) != 1 or not name.isalpha():
        return None
    if re.search(rf"(?<![\\A-Za-z]){name}", low + high):
        return None
    return name, f"{'(' if first in _STRICT else '['}{low},{high}{')' if second in _STRICT else ']'}"


def _is_less(sign: str) -> bool:
    return sign == "<" or sign.startswith(r"\l")


def as_points(gold: str, answer: str) -> tuple[str, str] | None:
    """Where only one side gives values of several names (`x = 1, y = 2`), they are a point, and so is a list without
    brackets on the other side. A list is in the order as written, a point in the order of the names. Nothing else but a
    column answers a gold one with names: then None. Any other pair is unchanged."""
    named, other = _values(gold), _values(answer)
    if bool(named) == bool(other):
        return gold, answer
    values, side = (named, answer) if named else (other, gold)
    if _is_bare_list(side):
        side = f"({side})"
    elif re.fullmatch(r"\([^()]*,[^()]*\)", inner := side.rpartition("=")[2].strip()):
        values, side = sorted(values), inner
    else:
        return None if named and r"\begin" not in answer else (gold, answer)
    point = f"({', '.join(value for _, value in values)})"
    return (point, side) if named else (side, point)


def _values(text: str) -> list[tuple[str, str]]:
    """At least two different names with their values, in the order as written; empty for any other text."""
    parts = [_ASSIGNMENT.fullmatch(part) for part in _AND.sub(",", text).split(",")]
    found = [part for part in parts if part]
    distinct = len({part[1] for part in found}) == len(found) == len(parts)
    return [(part[1], part[2]) for part in found] if distinct and len(found) > 1 else []


def _is_bare_list(text: str) -> bool:
    """Whether a text is a list without brackets or names, such as `2, 1`."""
    return "," in text and re.search(r"[=(){}\[\]<>:]", re.sub(r"\\[A-Za-z]+\s*(?:\{[^{}]*\}\s*)+", "", text)) is None
