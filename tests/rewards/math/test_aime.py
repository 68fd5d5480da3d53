"""Integers: which part of a response counts, how it may be written, and that no input costs time."""

import time
from pathlib import Path

import pytest
from program import strict_lines

from gspo_cli.rewards.math.grade import grade_aime

RESPONSES = strict_lines(Path(__file__).with_name("integers.jsonl"))
"""Responses to a problem whose answer is 204, and the verdict."""


@pytest.mark.parametrize("row", RESPONSES, ids=lambda row: ascii(row["response"])[:60])
def test_which_integer_a_response_gives(row: dict[str, str]) -> None:
    response, verdict = row["response"], row["verdict"]
    assert grade_aime(response, "204").verdict == grade_aime(response, "0204").verdict == verdict
    assert grade_aime(response, "205").verdict == ("wrong" if verdict == "correct" else verdict)


@pytest.mark.parametrize("written", ["1,024", "1{,}024", r"1\,024", r"1,\!024", "1024"])
def test_thousands(written: str) -> None:
    assert grade_aime(f"\\boxed{{{written}}}", "1024").verdict == "correct"


def test_only_the_last_three_lines_may_say_it() -> None:
    text = "The answer is 204\n\na\n\nb"
    assert grade_aime(text, "204").passed and not grade_aime(f"{text}\nc", "204").passed


def test_where_it_stood_is_told() -> None:
    by = [grade_aime(text, "7").extracted_by for text in (r"\boxed{7}", "#### 7", "the answer is 7", "7", "so 7")]
    assert by == ["box", "hashes", "phrase", "bare", None]


def test_why_there_is_no_answer_is_told() -> None:
    guesses = "".join(f"\\boxed{{{i}}}" for i in range(11))
    texts = ["<think>", guesses, r"\boxed{1} or \boxed{2}", "x", r"\boxed{x}"]
    assert [grade_aime(text, "10").reason for text in texts] == ["unclosed", "spam", "hedge", "none", "no integer"]
    assert grade_aime(guesses.replace(r"\boxed{0}", ""), "10").passed


@pytest.mark.parametrize("gold", ["", "x", "-3", "1/2", "3.5"])
def test_a_gold_answer_that_is_no_integer_is_no_verdict_on_the_response(gold: str) -> None:
    found = grade_aime(r"\boxed{3}", gold)
    assert (found.verdict, found.passed, found.score.value) == ("grader_error", None, None)


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
