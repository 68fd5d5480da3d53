"""The `\\boxed{..}` of a response, in one pass over the text however the braces are nested or broken."""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = r"\\++(?:boxed|fbox)(?![A-Za-z])"
# Possessive throughout, and runs of one character are one token: nothing is read twice, and little one by one.
_TOKEN = re.compile(
    rf"(?P<flat>{_NAME}\s*+\{{(?P<content>[^{{}}\\]*+)\}})|(?P<opens>{_NAME}\s*+\{{)"
    rf"|(?P<other>{_NAME}(?:\s*+(?:\\++\{{(?P<escaped>[^{{}}\\]*+)\\++\}}|(?P<number>[+\-\u2212]?\d[\d,./]*+)(?![A-Za-z\\{{^_])))?+)"
    r"|(?P<slashes>\\++)[{}]?|\{++|\}++"
)
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
    stack: list[int | tuple[int, int]] = []  # braces that are open: a number of plain ones, or a box and its content
    first = min((i for i in (text.find("boxed"), text.find("fbox")) if i >= 0), default=len(text))
    for token in _TOKEN.finditer(text, len(text[:first].rstrip("\\"))):
        kind, start, end = token.lastgroup, token.start(), token.end()
        if kind in ("flat", "other"):
            for group in ("content", "escaped", "number"):
                if token[group] is not None:
                    found.append((start, end, *token.span(group)))
        elif kind == "opens":
            stack.append((start, end))
        elif kind == "slashes" and (text[end - 1] == "\\" or len(token["slashes"]) % 2):
            continue
        elif text[end - 1] == "{":
            stack.append(end - token.end("slashes") if kind else end - start)
        else:
            _close(stack, found, end - 1 if kind else start, end)
    closed = [Box(start, end, text[a:b].strip()) for start, end, a, b in found]
    return [box for box in closed if not _is_empty(box.content)]


def _close(stack: list[int | tuple[int, int]], found: list[tuple[int, int, int, int]], start: int, end: int) -> None:
    """Takes the closing braces from `start` to `end` off the stack; a box that they close replaces those within it."""
    while start < end and stack:
        opened = stack.pop()
        if isinstance(opened, int):
            if opened > end - start:
                stack.append(opened - (end - start))
            start += opened
            continue
        start += 1
        while found and found[-1][0] > opened[0]:
            found.pop()
        found.append((opened[0], start, opened[1], start - 1))


def _is_empty(content: str) -> bool:
    """Whether a box holds nothing but blanks, braces and empty boxes."""
    return not content or (not content[0].isalnum() and len(content) < 100 and not _NOTHING.sub("", content))
