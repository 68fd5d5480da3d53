"""The `\\boxed{..}` of a response, in one pass over the text however the braces are nested or broken."""

from __future__ import annotations

import re
from typing import NamedTuple

# Possessive quantifiers, and a run of backslashes is consumed whole: no input is read twice.
_TOKEN = re.compile(r"\\++(?P<after>[{}]|(?P<box>(?:boxed|fbox)(?![A-Za-z]))(?:\s*+\{)?+)?|[{}]")
_ESCAPED = re.compile(r"\s*+\\++\{(?P<content>[^{}\\]*+)\\++\}")
_NUMBER = re.compile(r"\s*+(?P<content>[+\-\u2212]?\d[\d,./]*+)(?![A-Za-z\\{^_])")
_NOTHING = re.compile(r"\\++(?:boxed|fbox)|[\s{}$]")


class Box(NamedTuple):
    """One box that is closed and not empty."""

    start: int
    end: int
    content: str


def boxes(text: str) -> list[Box]:
    """The outermost closed boxes in the order of the text.

    Accepted: `\\boxed{..}`, `\\fbox{..}`, blanks before the brace, `\\boxed\\{7\\}`, `\\boxed 7`, and backslashes
    doubled by an escape too many. A brace behind an odd number of backslashes is a printed one and opens nothing.
    """
    found: list[tuple[int, int, int, int]] = []  # start and end of the box, start and end of its content
    open_braces: list[tuple[int, int] | None] = []  # (start of box, start of content), None for any other brace
    first = min((i for i in (text.find("boxed"), text.find("fbox")) if i >= 0), default=len(text))
    for token in _TOKEN.finditer(text, len(text[:first].rstrip("\\"))):
        start, end, last = token.start(), token.end(), token[0][-1]
        if token["box"]:
            if last == "{":
                open_braces.append((start, end))
            elif whole := _ESCAPED.match(text, end) or _NUMBER.match(text, end):
                found.append((start, whole.end(), *whole.span("content")))
        elif last not in "{}" or (end - start - 1) % 2:
            continue
        elif last == "{":
            open_braces.append(None)
        elif open_braces and (opened := open_braces.pop()):
            while found and found[-1][0] > opened[0]:  # boxes within this one
                found.pop()
            found.append((opened[0], end, opened[1], end - 1))
    whole_boxes = (Box(start, end, text[a:b].strip()) for start, end, a, b in found)
    return [box for box in whole_boxes if len(box.content) > 100 or _NOTHING.sub("", box.content)]
