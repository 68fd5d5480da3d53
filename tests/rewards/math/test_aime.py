"""Integers: which part of a response counts, how it may be written, and that no input costs time."""

from __future__ import annotations

import time

import pytest

from gspo_cli.rewards.math.grade import grade_aime

RIGHT = r"""
\boxed{204} | \boxed{204.} | \boxed{+204} | \boxed{000204} | \boxed{204.000} | \fbox{204} | \boxed {204}
\boxed 204.
\\boxed{204} | \boxed\{204\} | \\boxed\\{204\\} | \boxed{{204}} | \boxed{20{4}} | \boxed{\boxed{204}}
\boxed{\boxed{204}
{ \boxed{204} | \boxed{$204$} | \boxed{\(204\)} | \boxed{\text{204}} | \boxed{\mathbf{204}}
\boxed{\displaystyle 204}
\boxed{204 \text{ cm}^2} | \boxed{204\,\mathrm{km/h}} | \boxed{204 minutes} | \boxed{\text{204 miles}}
\boxed{204\text{ apples}}
\boxed{204^\circ} | \boxed{204^{\circ}} | \boxed{204°} | \boxed{\$204} | \boxed{€204}
\boxed{204_{10}}
\boxed{x = 204} | \boxed{m+n = 200+4 = 204} | \boxed{f(1,2) = 200+4 = 204}
\boxed{100+104} | \boxed{408/2} | \boxed{\frac{408}{2}} | \boxed{2\cdot 102} | \boxed{204^1} | \boxed{\left(204\right)}
\boxed{\binom{18}{2}+51} | \boxed{2.04e2} | \boxed{204,} | \boxed{204\text{th}} | \boxed{$204$ dollars}
\boxed{N \equiv 204 \pmod{1000}}
\boxed{２０４} | \boxed{٢٠٤} | \boxed{𝟐𝟎𝟒} | \boxed{1} \boxed{204} | \boxed{204}\boxed{}
\boxed{204} I used \boxed for it.
\boxed{204} or \boxed{204.0} | \boxed{1} or two: \boxed{204} | ####204 | The answer is $204$.
**Answer:** 204
**Final Answer**: 204 | The answer is 204, since 5+3 = 8. | Final answer is \(204\) | $204$ | 204
Final Answer: The final answer is $204$. I hope it is correct. | <think>\boxed{1}</think>\boxed{204}
<think>a</think>\boxed{1}<think>b</think>\boxed{204} | </think>\boxed{204}
"""
NO_ANSWER = r"""
\boxed{-204} | \boxed{−204} | \boxed{--204} | \boxed{204.5} | \boxed{²⁰⁴} | \boxed{①}
\boxed{Ⅷ} | \boxed{½}
\boxed{204\%} | \boxed{204\text{ percent}} | \boxed{\approx 204}
\boxed{x \approx 204} | \boxed{204 \mod 1000}
\boxed{\textbf{(B)}\ 204} | \boxed{\text{5}=204} | \boxed{\text{maybe 5 but}=204} | \boxed{5, x=204}
\boxed{\frac{409}{2}}
\boxed{\pm 204}
\boxed{204 205} | \boxed{204, 205} | \boxed{204;205} | \boxed{204,\,205} | \boxed{204 \text{ or } 205}
\boxed{\{204\}}
\boxed{204 \text{ or more}} | \boxed{204 \text{ thousand}} | \boxed{204 pi} | \boxed{204n} | \boxed{204\pi}
\boxed{204 = x} | \boxed{203 = 204} | \boxed{f(1,2) = 2 = 204}
\boxed{0 \le x \le 204} | \boxed{x \ne 204} | \boxed{x != 204} | \boxed{x=200, y=204}
\boxed{x=1 \text{ or } x=204}
\boxed{204_{8}} | \boxed{0xCC} | \boxed{1_000} | \boxed{10,24} | \boxed{0,204}
\boxed{\text{two hundred}}
\boxed{204\text{k}} | \boxed{204\mathrm{i}} | \boxed{204\mathrm{e}}
\boxed{204\text{ incorrect}} | \boxed{204\text{ tenths}}
\boxed{204 | \boxed{204\} | The answer is \boxed{204 | \boxedx{204} | boxed{204} | \boxed{} | \boxed{\boxed{}}
\boxed{204} or \boxed{205} | $\boxed{205}$, \text{or} $\boxed{204}$ | The answer is 204 or 205
The answer is not 204
We tried 203 and 204. | So 204 | The answers are 204 | <think>\boxed{204}</think> | <think>\boxed{204}
\boxed{204}<think>
\boxed{(lambda: 204)()} | \boxed{9^{9^{9^9}}} | \boxed{(10^9)!} | \boxed{7^{10^{18}} \bmod 1000}
"""


def cases(table: str) -> list[str]:
    """The responses of a table, between bars and line ends."""
    return [case.strip() for line in table.strip().splitlines() for case in line.split(" | ")]


@pytest.mark.parametrize("response", cases(RIGHT))
def test_accepted(response: str) -> None:
    assert grade_aime(response, "204").verdict == "correct"
    assert grade_aime(response, "0204").verdict == "correct"
    assert grade_aime(response, "205").verdict == "wrong"


@pytest.mark.parametrize("response", cases(NO_ANSWER))
def test_no_integer(response: str) -> None:
    assert grade_aime(response, "204").verdict == "no_answer"


@pytest.mark.parametrize("written", ["1,024", "1{,}024", r"1\,024", r"1,\!024", "1024"])
def test_thousands(written: str) -> None:
    assert grade_aime(f"\\boxed{{{written}}}", "1024").verdict == "correct"


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        ("20\u200b4", "correct"), ("20\x004", "correct"), ("20\n4", "no_answer"), ("20\u00a04", "no_answer"),
        ("204\ud83d", "no_answer"), ("\x1b[31m204", "no_answer"), ("\u202e402", "wrong"),
        (" " * 300 + "204", "correct"),
        ("0" * 13, "no_answer"), ("1" * 300, "no_answer"), ("x=" * 200 + "204", "no_answer"),
    ],
)  # fmt: skip
def test_odd_characters_and_lengths(response: str, verdict: str) -> None:
    assert grade_aime(f"\ud83d\x00\\boxed{{{response}}}\x1b", "204").verdict == verdict


def test_where_it_stood_is_told() -> None:
    by = [grade_aime(text, "7").extracted_by for text in (r"\boxed{7}", "#### 7", "the answer is 7", "7", "so 7")]
    assert by == ["box", "hashes", "phrase", "bare", None]


def test_why_there_is_no_answer_is_told() -> None:
    guesses = "".join(f"\\boxed{{{i}}}" for i in range(11))
    texts = ["<think>", guesses, r"\boxed{1} or \boxed{2}", "x", r"\boxed{x}"]
    assert [grade_aime(text, "10").reason for text in texts] == ["unclosed", "spam", "hedge", "none", "no integer"]
    assert grade_aime(guesses.replace(r"\boxed{0}", ""), "10").passed


def test_only_the_last_three_lines_may_say_it() -> None:
    assert grade_aime("The answer is 204\n\na\n\nb", "204").passed
    assert not grade_aime("The answer is 204\n\na\n\nb\nc", "204").passed


@pytest.mark.parametrize("gold", ["", "x", "-3", "1/2", "3.5"])
def test_a_gold_answer_that_is_no_integer_is_no_verdict_on_the_response(gold: str) -> None:
    found = grade_aime(r"\boxed{3}", gold)
    assert (found.verdict, found.passed, found.score.value) == ("grader_error", False, None)


HALF = 50_000
LONG = {
    "boxes": r"\boxed{1}" * (HALF // 9), "unclosed boxes": r"\boxed{" * (HALF // 7), "braces": r"\boxed{" + "{" * HALF,
    "closed braces": r"\boxed{" + "{" * (HALF // 2) + "}" * (HALF // 2), "backslashes": "\\" * HALF + r"boxed{1}",
    "nested boxes": r"\boxed{" * (HALF // 8) + "1" + "}" * (HALF // 8), "blanks": r"\boxed" + " " * HALF + "{1}",
    "commands and blanks": (r"\boxed" + " " * 20) * (HALF // 26), "escaped": r"\boxed\{" * (HALF // 8),
    "bare boxes": r"\boxed 7" * (HALF // 8), "lines": "\n" * HALF, "headings": "####\n" * (HALF // 5),
    "answers": "answer is " * (HALF // 10), "answer and blanks": "answer" + " " * HALF,
    "dollars": "answer:" + "$" * HALF,
    "commas": "the answer is " + ", (" * (HALF // 3), "tags": "<think></think>" * (HALF // 15), "digits": "1" * HALF,
    "one long line": "x" * HALF + r"\boxed{1}",
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_time_is_short_and_linear(name: str) -> None:
    def seconds(text: str) -> float:
        start = time.process_time()
        grade_aime(text, "204")
        return time.process_time() - start

    once = min(seconds(LONG[name]) for _ in range(3))
    twice = min(seconds(LONG[name] * 2) for _ in range(3))
    assert twice < 4 * once + 0.2  # quadratic at these lengths would be minutes


def test_960_responses_take_less_than_two_seconds() -> None:
    response = "<think>\n" + "Let $x = \\frac{1}{2}$ and so on. " * 600 + "\n</think>\n\nSo it is \\boxed{%d}."
    start = time.process_time()
    passed = sum(grade_aime(response % (i % 3), "0").passed for i in range(30 * 32))
    assert passed == 320
    assert time.process_time() - start < 2
