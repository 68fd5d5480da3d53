"""Which part of a response is its answer. Numbers that are merely mentioned never are."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gspo_cli.rewards.boxes import Box, boxes
from gspo_cli.rewards.clean import same_text
from gspo_cli.rewards.numerals import number, same_number

MAX_BOXES = 10  # different contents; more are guesses thrown at the grader
LAST_LINES = 3  # non-empty ones in which "the answer is" is looked for
LINE_TAIL = 1000  # characters of such a line
_NOT_A_WORD = re.compile(r"\\(?:text|textbf|mathrm|quad|qquad)\b|\\|[^A-Za-z0-9\\]+")
_PHRASE = re.compile(r".*\banswer\b[\s*_]*(?:is|[:=])[\s*_]*[:=]?(?P<answer>.*)", re.IGNORECASE)
_DISPLAYED = re.compile(r"\$\$?(?P<dollar>[^$]+)\$|\\\((?P<round>.+?)\\\)|\\\[(?P<square>.+?)\\\]")
_CLAUSE_END = re.compile(
    r"[.;!?](?=\s|$)|,(?=\s)(?![^(\[{]*[)\]}])|\s(?:because|since|as|which|so|for|when|where|i hope)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Extracted:
    """An answer and where it stood, or why there is none."""

    text: str | None
    by: str
    """`box`, `hashes`, `phrase`, `bare`; without a text `unclosed`, `spam`, `hedge` or `none`."""


def extract(response: str) -> Extracted:
    """What the response commits to: the last box, else the last line that starts with `####`, else "answer is X" near
    the end, else a response that is nothing but a number.

    Only what follows the last `</think>` is read, and nothing of a response whose last `<think>` is still open.
    """
    visible = response.rsplit("</think>", 1)[-1]
    if "<think>" in visible:
        return Extracted(None, "unclosed")
    if found := boxes(visible):
        return _of_boxes(found, visible)
    lines = [line for line in visible.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.lstrip().startswith("####"):
            return Extracted(_trim(line.lstrip().lstrip("#")), "hashes")
    for line in reversed(lines[-LAST_LINES:]):
        phrase = _PHRASE.fullmatch(line[-LINE_TAIL:])
        if phrase and "boxed" not in phrase["answer"]:  # a box that is not closed is no answer
            return Extracted(_clause(phrase["answer"]), "phrase")
    alone = _trim(visible) if len(visible) < LINE_TAIL else ""
    return Extracted(alone, "bare") if number(alone) is not None else Extracted(None, "none")


def _of_boxes(found: list[Box], visible: str) -> Extracted:
    """The content of the last box, unless the boxes are guesses."""
    if len({box.content for box in found}) > MAX_BOXES:
        return Extracted(None, "spam")
    last = found[-1]
    if len(found) > 1 and _differ(found[-2].content, last.content):
        between = visible[found[-2].end : last.start]
        if len(between) < LINE_TAIL and _NOT_A_WORD.sub(" ", between).strip().lower() == "or":
            return Extracted(None, "hedge")
    return Extracted(last.content, "box")


def _differ(one: str, other: str) -> bool:
    """Whether two answers are not the same one, as far as reading tells."""
    first, second = number(one), number(other)
    return not (same_number(first, second) if first and second else same_text(one, other))


def _trim(text: str) -> str:
    """Without blanks and the marks of bold or italic type around it."""
    return text.strip().strip("*").strip()


def _clause(text: str) -> str:
    """The displayed formula that a text starts with, else its first clause."""
    text = _trim(text)
    if shown := _DISPLAYED.match(text):
        return (shown["dollar"] or shown["round"] or shown["square"]).strip()
    return _trim(_CLAUSE_END.split(text, maxsplit=1)[0])
