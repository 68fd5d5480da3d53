"""Find the answer in a response: its last `\\boxed{..}`, or a phrase that announces one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from gspo_cli.rewards.math.equation import DOUBT
from gspo_cli.rewards.math.normalize import number, same_number, same_text
from gspo_cli.types import visible

MAX_BOXES = 10  # different contents; more are guesses
LAST_LINES = 3  # non-empty lines in which "the answer is" counts
LINE_TAIL = 1000  # characters of such a line
_NOT_A_WORD = re.compile(r"\\(?:text|textbf|mathrm|quad|qquad)\b|\\|[^A-Za-z0-9\\]+")
_PHRASE = re.compile(r"(?P<before>.*)\banswer\b[\s*_]*(?:is|[:=])[\s*_]*[:=]?(?P<answer>.*)", re.IGNORECASE)
_WRONG = (
    r"(?:\w+\s+)?(?:wrong|incorrect|false|mistaken|"
    r"not\s+(?:\w+\s+)?(?:right|correct|true|it|(?:the\s+)?(?:\w+\s+)?answer))\b"
)
_RETRACTED = re.compile(
    rf"[\s$*.)\]\\]*(?:,?\s*(?:but\s+)?(?:which|that|this|it)\s+)?(?:is|was|'s)\s+{_WRONG}", re.IGNORECASE
)
_IS = r"(?:\s*['\u2019]s|\s+(?:is|was))"
_PAUSE = r"[\s,.:;!*\u2026\u2014-]*"
_SAID = (
    r"(?:it|that|this|which|(?:that|this|the|my)\s+(?:(?:final|correct|right|actual)\s+)?(?:answer|result|box|value))"
)
_RETHINKS = (
    r"(?:\bno(?=\s*[,.:;!\u2026\u2014]|\s+(?:wait|it|that|this|the\s+answer)\b)"
    r"|\b(?:wait|actually|oops|sorry|apologies|correction|or\s+rather|hmm+|hold\s+on|on\s+second\s+thought|my\s+mistake"
    r"|let\s+me\s+(?:correct|fix|revise)(?:\s+(?:that|this|it|my\s+answer))?)\b)"
)
_WITHDRAWN = re.compile(
    rf"{_RETHINKS}{_PAUSE}{_SAID}{_IS}\s+{_WRONG}|\b(?:that|this|the|my)\s+(?:previous\s+|above\s+)?(?:answer|box)(?:\s+above)?{_IS}\s+{_WRONG}"
    r"|\b(?:scratch\s+that|(?:ignore|disregard)\s+(?:that|this|the\s+above|my)|i\s+take\s+(?:that|it)\s+back)\b"
    r"|\bi(?:\s+have|['\u2019]ve)?\s+made\s+an?\s+(?:\w+\s+)?(?:mistake|error)\b",
    re.IGNORECASE,
)
_VALUE = (
    r"(?P<value>\$\$?[^$\n]+\$|\\\(.+?\\\)|[-+\u2212]?(?:\d[\d.,/]*|\\[a-z]+[^\s,;]*)(?:\\?%)?"
    r"|\(?(?-i:[A-H])(?![\w'])\)?(?!\s+[a-z]))"
)
_BE = r"\s+(?:should|must|ought\s+to|has\s+to)(?:\s+(?:actually|really|instead))?\s+(?:be|have\s+been|read|equal)\b"
_REPLACED = re.compile(
    rf"(?:{_RETHINKS}{_PAUSE}(?:\b{_SAID}(?:{_IS}|{_BE})?{_PAUSE}|\b[^.!?\n]{{0,60}}?{_BE}{_PAUSE})?|\b{_SAID}{_BE}{_PAUSE}"
    rf"|\b{_SAID}{_IS}\s+(?:actually|really|in\s+fact|rather|instead)\s+|\bi\s+meant?\s+(?:to\s+(?:say|write)\s+)?"
    rf"|\bthe\s+(?:correct|right|actual|true|real)\s+(?:answer|value|result)(?:{_IS}|\s+(?:should|would|must)\s+be|:){_PAUSE}){_VALUE}",
    re.IGNORECASE,
)
_INSTEAD_OF = re.compile(rf"\b(?:not|instead\s+of|rather\s+than)\s+{_VALUE}", re.IGNORECASE)
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
    shown = visible(response)
    if shown is None:
        return Extracted(None, "unclosed")
    if closed := boxes(shown):
        return _last_box(closed, shown)
    lines = [line for line in shown.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.lstrip().startswith("####"):
            return _standing(_trim(line.lstrip().lstrip("#")), shown.rpartition(line)[2], "hashes")
    for line in reversed(lines[-LAST_LINES:]):
        phrase = _PHRASE.fullmatch(line[-LINE_TAIL:])
        if phrase and "boxed" not in phrase["answer"]:  # an unclosed box is no answer
            if _denied(phrase["before"]):  # "I don't think the answer is 7"
                return Extracted(None, "hedge")
            return _standing(_first_clause(phrase["answer"]), phrase["answer"] + shown.rpartition(line)[2], "phrase")
    alone = _trim(shown) if len(shown) < LINE_TAIL else ""
    return Extracted(alone, "bare") if number(alone) is not None else Extracted(None, "none")


def _last_box(closed: list[Box], shown: str) -> Extracted:
    """The content of the last box, unless the boxes are guesses."""
    if len({box.content for box in closed}) > MAX_BOXES:
        return Extracted(None, "spam")
    last = closed[-1]
    if len(closed) > 1 and not _same(closed[-2].content, last.content):
        between = shown[closed[-2].end : last.start]
        if len(between) < LINE_TAIL and _NOT_A_WORD.sub(" ", between).strip().lower() == "or":
            return Extracted(None, "hedge")
    return _standing(last.content, shown[last.end :], "box")


def _standing(answer: str, after: str, by: str) -> Extracted:
    """The answer, unless the text after it takes it back."""
    return Extracted(None, "hedge") if _is_retracted(answer, after) else Extracted(answer, by)


def _denied(before: str) -> bool:
    """Whether the clause that leads up to "answer is" denies or doubts it."""
    return DOUBT.search(_HARMLESS.sub("", _CLAUSE_START.split(before)[-1])) is not None


def _is_retracted(content: str, after: str) -> bool:
    """Whether the text after an answer calls it wrong, replaces it, or announces another number as the answer."""
    if not after or after.isspace() or len(after) < 4:
        return False
    near = after[:LINE_TAIL] + after[LINE_TAIL:][-LINE_TAIL:]
    if _RETRACTED.match(near) or _WITHDRAWN.search(near):
        return True
    said, denied = ([m["value"].strip("$ .,()") for m in each.finditer(near)] for each in (_REPLACED, _INSTEAD_OF))
    if (said and not _same(content.strip("$ .,()"), said[-1])) or any(_same(content, value) for value in denied):
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


_NAME = r"\\++(?:boxed|fbox)(?![A-Za-z])\s*+"
_TOKEN = re.compile(  # possessive, so that nothing is read twice
    rf"(?P<opens>{_NAME}\{{)|{_NAME}(?:\\++\{{(?P<escaped>[^{{}}\\]*+)\\++\}}"
    r"|(?P<number>[+\-\u2212]?\d[\d,./]*+)(?![A-Za-z\\{^_]))|(?P<slashes>\\++)(?P<escapes>[{}])?|[{}]"
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
    found: list[Box] = []
    opened: list[tuple[int, int] | None] = []  # open braces: the start of a box and of its content, or None
    for token in _TOKEN.finditer(text):
        (start, end), kind = token.span(), token.lastgroup
        if kind in ("escaped", "number"):
            found.append(Box(start, end, token[kind].strip()))
        elif kind == "opens":
            opened.append((start, end))
        elif kind == "slashes" or (kind == "escapes" and len(token["slashes"]) % 2):
            continue
        elif text[end - 1] == "{":
            opened.append(None)
        elif opened and (box := opened.pop()):
            while found and found[-1].start > box[0]:
                found.pop()
            found.append(Box(box[0], end, text[box[1] : end - 1].strip()))
    return [box for box in found if not _is_empty(box.content)]


def _is_empty(content: str) -> bool:
    """Whether a box holds only blanks, braces and empty boxes."""
    return not content or (not content[0].isalnum() and len(content) < 100 and not _NOTHING.sub("", content))
