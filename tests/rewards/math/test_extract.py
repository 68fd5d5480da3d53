"""Boxes: the one pass against a plain search from every opening, and the contents of hand-written texts."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from program import strict_lines

from gspo_cli.rewards.math.extract import boxes, extract

PIECES = ["\\boxed{", "\\fbox{", "\\boxed {", "\\\\boxed{", "{", "}", "\\{", "\\}", "\\\\{", "7", "x", " ", "\\frac"]


def plainly(text: str) -> list[str]:
    """What the outermost closed boxes hold: each opening is followed to its own closing brace."""
    spans = []
    for start in range(len(text)):
        name = next((n for n in ("\\boxed", "\\fbox") if text.startswith(n, start)), None)
        if name is None:
            continue
        rest = text[start + len(name) :]
        if not rest.lstrip(" ").startswith("{"):
            continue
        content = start + len(name) + rest.index("{") + 1
        depth, slashes = 1, 0
        for place in range(content, len(text)):
            if text[place] in "{}" and slashes % 2 == 0:
                depth += 1 if text[place] == "{" else -1
            slashes = slashes + 1 if text[place] == "\\" else 0
            if not depth:
                spans.append((start, place, text[content:place].strip()))
                break
    outermost = [s for s in spans if not any(o[0] < s[0] and s[1] < o[1] for o in spans)]
    return [content for _, _, content in outermost if content]


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@example(r"\boxed{\\boxed{}}")
@settings(max_examples=400, deadline=None)
def test_the_pass_finds_what_a_search_finds(text: str) -> None:
    found = [box.content for box in boxes(text)]
    nothing = re.compile(r"\\+(boxed|fbox)|[{}$ ]")
    assert found == [content for content in plainly(text) if nothing.sub("", content)]


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        (r"\boxed{\frac{1}{2}} then \fbox{3}", [r"\frac{1}{2}", "3"]),
        (r"\boxed{\{1, 2\}} \boxed{\left\{3\right.}", [r"\{1, 2\}", r"\left\{3\right."]),
        (r"\boxed{a \boxed{b} c}", [r"a \boxed{b} c"]),
        (r"\boxed{a \boxed{b} c", ["b"]),
        (r"\boxed 7, \boxed  -1.5 \boxed x \boxed2 \boxed 3x \boxed{}", ["7,", "-1.5", "2"]),
        (r"\boxed\{7\} \\boxed\\{8\\} \boxed\{9", ["7", "8"]),
        (r"\boxes{1} \unboxed{2} boxed{3} \boxedx{4}", []),
        (r"} } \boxed{5} } {", ["5"]),
    ],
)
def test_by_hand(text: str, contents: list[str]) -> None:
    assert [box.content for box in boxes(text)] == contents


def test_where_a_box_stands() -> None:
    text = r"so \\boxed{1}, no, \boxed 2"
    assert [text[box.start : box.end] for box in boxes(text)] == [r"\\boxed{1}", r"\boxed 2"]


RETRACTIONS = strict_lines(Path(__file__).with_name("retractions.jsonl"))
"""Responses that deny, retract, replace or uphold an answer, and what stands."""


@pytest.mark.parametrize("row", RETRACTIONS)
def test_what_is_denied_or_taken_back_is_no_answer(row: dict[str, str | None]) -> None:
    found = extract(row["response"] or "")
    assert found.text == row["text"] and (found.text is not None or found.by == "hedge")
