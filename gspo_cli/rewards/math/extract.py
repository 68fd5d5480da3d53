"""Find the answer in a response: its last `\\boxed{..}`, or a phrase that announces one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from gspo_cli.rewards.math.normalize import number, same_number, same_text

MAX_BOXES = 10  # different contents; more are guesses
LAST_LINES = 3  # non-empty lines in which "the answer is" counts
LINE_TAIL = 1000  # characters of such a line
_NOT_A_WORD = re.compile(r"\\(?:text|textbf|mathrm|quad|qquad)\b|\\|[^A-Za-z0-9\\]+")
_PHRASE = re.compile(r"(?P<before>.*)\banswer\b[\s*_]*(?:is|[:=])[\s*_]*[:=]?(?P<answer>.*)", re.IGNORECASE)
_DOUBT = re.compile(
    r"\b(?:not?|never|nor|neither|hardly|doubt|unlikely|wrong|incorrect|false|whether|unless|nobody|denie[sd]|deny|cannot)\b"
    r"|n['\u2019]t\b",
    re.IGNORECASE,
)
_RETRACTED = re.compile(
    r"[\s$*.)\]\\]*(?:,?\s*(?:but\s+)?(?:which|that|this|it)\s+)?(?:is|was|'s)\s+"
    r"(?:(?:clearly|actually|obviously|just|also|simply)\s+)?"
    r"(?:wrong|incorrect|false|mistaken|not\s+(?:right|correct|true|the\s+(?:right\s+|correct\s+|final\s+)?answer))\b",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"\b(?:not (?:too |very |so )?(?:hard|difficult) to \w+|not (?:only|surprising(?:ly)?)"
    r"|no (?:doubt|matter|question|other)|without (?:a |any )?doubt|can(?:not|'t) be denied)\b",
    re.IGNORECASE,
)
_CLAUSE_START = re.compile(r"[.!?;,:](?=\s)|\b(?:so|thus|hence|therefore|then)\b", re.IGNORECASE)
_DISPLAYED = re.compile(r"\$\$?(?P<dollar>[^$]+)\$|\\\((?P<round>.+?)\\\)|\\\[(?P<square>.+?)\\\]")
_CLAUSE_END = re.compile(
    r"[.;!?](?=\s|$)|,(?=\s)(?![^(\[{]*[)\]}])|\s(?:because|since|as|which|so|for|when|where|i hope)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Extracted:
    """An answer and where it was found, or why there is none."""

    text: str | None
    by: str
    """`box`, `hashes`, `phrase`, `bare`; without a text `unclosed`, `spam`, `hedge` or `none`."""


def extract(response: str) -> Extracted:
    """The answer that the response commits to: its last box, else its last line that starts with `####`, else "answer
    is X" near its end, else the whole response if it is just a number.

    Only text after the last `</think>` is read; if the last `<think>` is still open, there is no answer.
    """
    visible = response.rsplit("</think>", 1)[-1]
    if "<think>" in visible:
        return Extracted(None, "unclosed")
    if closed := boxes(visible):
        return _last_box(closed, visible)
    lines = [line for line in visible.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.lstrip().startswith("####"):
            return Extracted(_trim(line.lstrip().lstrip("#")), "hashes")
    for line in reversed(lines[-LAST_LINES:]):
        phrase = _PHRASE.fullmatch(line[-LINE_TAIL:])
        if phrase and "boxed" not in phrase["answer"]:  # an unclosed box is no answer
            if _denied(phrase["before"]):  # "I don't think the answer is 7"
                return Extracted(None, "hedge")
            return Extracted(_first_clause(phrase["answer"]), "phrase")
    alone = _trim(visible) if len(visible) < LINE_TAIL else ""
    return Extracted(alone, "bare") if number(alone) is not None else Extracted(None, "none")


def _last_box(closed: list[Box], visible: str) -> Extracted:
    """The content of the last box, unless the boxes are guesses."""
    if len({box.content for box in closed}) > MAX_BOXES:
        return Extracted(None, "spam")
    last = closed[-1]
    if len(closed) > 1 and not _same(closed[-2].content, last.content):
        between = visible[closed[-2].end : last.start]
        if len(between) < LINE_TAIL and _NOT_A_WORD.sub(" ", between).strip().lower() == "or":
            return Extracted(None, "hedge")
    return (
        Extracted(None, "hedge") if _is_retracted(last.content, visible[last.end :]) else Extracted(last.content, "box")
    )


def _denied(before: str) -> bool:
    """Whether the clause that leads up to "answer is" denies or doubts it."""
    return _DOUBT.search(_HARMLESS.sub("", _CLAUSE_START.split(before)[-1])) is not None


def _is_retracted(content: str, after: str) -> bool:
    """Whether the text after the last box calls it wrong, or announces another number as the answer."""
    if not after or after.isspace() or len(after) < 4:
        return False
    if _RETRACTED.match(after[:LINE_TAIL]):
        return True
    lines = [line[-LINE_TAIL:] for line in after[-LINE_TAIL:].splitlines() if line.strip()]
    phrases = [phrase for line in lines[-LAST_LINES:] if (phrase := _PHRASE.fullmatch(line))]
    if not phrases or _denied(phrases[-1]["before"]):
        return False
    first, second = number(content), number(_first_clause(phrases[-1]["answer"]))
    return bool(first and second and not same_number(first, second))


def _same(one: str, other: str) -> bool:
    """Whether two answers are the same, as far as reading decides."""
    first, second = number(one), number(other)
    return same_number(first, second) if first and second else same_text(one, other)


def _trim(text: str) -> str:
    """Strip blanks and the marks of bold or italic type."""
    return text.strip().strip("*").strip()


def _first_clause(text: str) -> str:
    """The displayed formula that a text starts with, else its first clause."""
    text = _trim(text)
    if formula := _DISPLAYED.match(text):
        return (formula["dollar"] or formula["round"] or formula["square"]).strip()
    return _trim(_CLAUSE_END.split(text, maxsplit=1)[0])


_NAME = r"\\++(?:boxed|fbox)(?![A-Za-z])"
# Possessive throughout, with runs of one character as one token, so that nothing is read twice.
_TOKEN = re.compile(
    rf"(?P<flat>{_NAME}\s*+\{{(?P<content>[^{{}}\\]*+)\}})|(?P<opens>{_NAME}\s*+\{{)"
    rf"|(?P<other>{_NAME}(?:\s*+(?:\\++\{{(?P<escaped>[^{{}}\\]*+)\\++\}}|(?P<number>[+\-\u2212]?\d[\d,./]*+)(?![A-Za-z\\{{^_])))?+)"
    r"|(?P<slashes>\\++)[{}]?|\{++|\}++"
)
_NOTHING = re.compile(r"\\++(?:boxed|fbox)|[\s{}$]")


class Box(NamedTuple):
    """A box that is closed and not empty."""

    start: int
    end: int
    content: str


def boxes(text: str) -> list[Box]:
    """The outermost closed boxes, in the order of the text.

    Accepted: `\\boxed{..}`, `\\fbox{..}`, blanks before the brace, `\\boxed\\{7\\}`, `\\boxed 7`, and backslashes
    doubled by excess escaping. A brace after an odd number of backslashes is literal and opens nothing.
    """
    spans: list[tuple[int, int, int, int]] = []  # start and end of the box, start and end of its content
    stack: list[int | tuple[int, int]] = []  # open braces: a count of plain ones, or starts of a box and its content
    first = min((i for i in (text.find("boxed"), text.find("fbox")) if i >= 0), default=len(text))
    for token in _TOKEN.finditer(text, len(text[:first].rstrip("\\"))):
        kind, start, end = token.lastgroup, token.start(), token.end()
        if kind in ("flat", "other"):
            for group in ("content", "escaped", "number"):
                if token[group] is not None:
                    spans.append((start, end, *token.span(group)))
        elif kind == "opens":
            stack.append((start, end))
        elif kind == "slashes" and (text[end - 1] == "\\" or len(token["slashes"]) % 2):
            continue
        elif text[end - 1] == "{":
            stack.append(end - token.end("slashes") if kind else end - start)
        else:
            _close(stack, spans, end - 1 if kind else start, end)
    found = [Box(start, end, text[a:b].strip()) for start, end, a, b in spans]
    return [box for box in found if not _is_empty(box.content)]


def _close(stack: list[int | tuple[int, int]], spans: list[tuple[int, int, int, int]], start: int, end: int) -> None:
    """Pop what the closing braces from `start` to `end` close; a closed box replaces the boxes within it."""
    while start < end and stack:
        opened = stack.pop()
        if isinstance(opened, int):
            if opened > end - start:
                stack.append(opened - (end - start))
            start += opened
            continue
        start += 1
        while spans and spans[-1][0] > opened[0]:
            spans.pop()
        spans.append((opened[0], start, opened[1], start - 1))


def _is_empty(content: str) -> bool:
    """Whether a box holds only blanks, braces and empty boxes."""
    return not content or (not content[0].isalnum() and len(content) < 100 and not _NOTHING.sub("", content))
