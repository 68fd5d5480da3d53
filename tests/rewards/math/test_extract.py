"""Boxes: the one pass against a plain search from every opening, and the contents of hand-written texts."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("I don't think the answer is 7.", None),
        ("Nobody should believe that the answer is 7.", None),
        ("It is wrong to say the answer is 7.", None),
        ("This was not easy. The answer is 7.", "7"),
        ("It is not hard to see that the answer is 7.", "7"),
        ("If n is not prime, the answer is 7.", "7"),
        (r"\[\boxed{7}\] which is wrong.", None),
        ("The answer is not 8. The answer is 7.", "7"),
        (r"\boxed{7} is wrong.", None),
        (r"So \boxed{7}. That is incorrect, though.", None),
        (r"\boxed{7} is clearly not the right answer", None),
        ("\\boxed{7}\n\nSorry, a slip. The answer is 8.", None),
        ("\\boxed{7}\n\nIndeed, the answer is 7.", "7"),
        ("\\boxed{7}\n\nSo the answer is not 8.", "7"),
        (r"\boxed{8} is wrong. So \boxed{7}.", "7"),
        (r"\boxed{7}, which is not hard to check.", "7"),
    ],
)
def test_what_is_denied_or_retracted_is_no_answer(response: str, text: str | None) -> None:
    found = extract(response)
    assert found.text == text and (text is not None or found.by == "hedge")


TAKEN_BACK = [
    "\\boxed{7}. No wait, it should be 5",
    "\\boxed{7}. Wait, that should be 5.",
    "\\boxed{7}. Actually, the answer is 5.",
    "\\boxed{7} Hmm, I made a mistake. It is 5.",
    "$\\boxed{7}$. Wait, no. $5$.",
    "\\boxed{7}. Scratch that.",
    "\\boxed{7}. Oops, that is wrong, the correct value is 5.",
    "\\boxed{7}. No, 5.",
    "\\boxed{7}. Sorry, I meant 5.",
    "\\boxed{7}. Correction: 5",
    "\\boxed{7}\n\nWait, I think it should actually be $5$ since 0 counts.",
    "\\boxed{7}. Hold on, that is not right.",
    "\\boxed{7} No, that cannot be right; it must be 5.",
    "\\boxed{7}. Actually it is 5",
    "\\boxed{7}. The right answer is 5.",
    "\\boxed{7}, or rather 5",
    "\\boxed{7}. On second thought, 5.",
    "\\boxed{7}... no, wait: \\(5\\)",
    "\\boxed{7}. But this is incorrect. ",
    "\\boxed{\\frac{1}{2}}. Wait, it should be $\\frac{1}{3}$.",
    "\\boxed{7}. I take it back.",
    "\\boxed{7}. Ignore that. The answer: 5",
    "\\boxed{7}. That answer is wrong.",
    "\\boxed{7} (this should have been 5)",
    "\\boxed{7}. Hmm, actually 5.",
    "\\boxed{7}. The previous answer is incorrect.",
    "\\boxed{C}. Wait, it should be B.",
    "\\boxed{7}. Wait, that’s wrong.",
    "\\boxed{7}. No! The answer must be 5.",
    "\\boxed{7}. My mistake: it should be 5.",
    "\\boxed{7}. Apologies, the answer should be 5",
    "\\boxed{7}. I now believe the answer is 5",
    "\\boxed{7}. Let me correct that: 5.",
    "\\boxed{7}. Let me recheck. So the result is 5, not 7.",
    "\\boxed{7}. It is not 7 but 5.",
    "\\boxed{7}. This answer is not correct.",
    "The answer is 7. No wait, it should be 5",
    "#### 7\nNo wait, it should be 5",
]
UPHELD = [
    "\\boxed{7}. Wait, let me double check: 3+4=7. Yes.",
    "\\boxed{7}. Actually, 7 is right.",
    "\\boxed{7}. No other values work.",
    "\\boxed{7}. This is the correct answer.",
    "\\boxed{7}. Note that it should be 7 and not 5.",
    "\\boxed{7}\n\nThis makes sense, since the sum must be 7.",
    "\\boxed{7}\n\nI hope it is correct.",
    "\\boxed{7}. Let me know if you have questions about 17 or 23!",
    "\\boxed{7}. So the correct answer is $\\boxed{7}$.",
    "\\boxed{\\frac{1}{2}}. The correct answer is $\\frac12$.",
    "\\boxed{7}. The value should be positive, which it is.",
    "\\boxed{7}. A common mistake is to forget the case 5.",
    "\\boxed{7} dollars.",
    "\\boxed{7}.\n\n**Check:** 2*7 = 14.",
    "\\boxed{7}. Wait, is that right? Yes, it is.",
    "\\boxed{7}. The answer must be an integer, and it is.",
    "\\boxed{C}. The correct answer is C.",
    "\\boxed{C}. The correct answer is (C) 12.",
    "\\boxed{7}.\n\nA solution of 5 would be wrong.",
    "\\boxed{7}. The correct answer is 7.",
    "\\boxed{7}. Actually, this is a well-known result.",
    "\\boxed{7}. No calculators are needed.",
    "\\boxed{1024}. Actually it is 1,024.",
    "\\boxed{7}. There is no $x$ below it.",
    "\\boxed{7}. Note: no 5 appears here.",
    "\\boxed{7}. The remaining value must be 3.",
    "\\boxed{7}. In total there must be 14 legs.",
    "The answer is 7. No other value works.",
    "#### 7\n",
]


@pytest.mark.parametrize("response", TAKEN_BACK)
def test_what_the_text_afterwards_takes_back_is_no_answer(response: str) -> None:
    assert extract(response).text is None


@pytest.mark.parametrize("response", UPHELD)
def test_what_the_text_afterwards_comments_on_stands(response: str) -> None:
    assert extract(response).text is not None
