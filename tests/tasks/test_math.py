"""MATH and GSM8K as tasks: rows from a file, the reference of a worked answer, rewards from the checker."""

from pathlib import Path
from typing import Any

import pytest
from program import refusal, write_rows

from gspo_cli.config import TaskConfig
from gspo_cli.rewards.math import grade
from gspo_cli.tasks import make_task
from gspo_cli.tasks.math import reference


def write(folder: Path, rows: list[dict[str, str]]) -> str:
    return str(write_rows(folder / "rows.jsonl", rows))


def test_rows_of_a_file(tmp_path: Path) -> None:
    path = write(
        tmp_path, [{"problem": "Half?", "answer": r"\frac{1}{2}"}, {"problem": "2x?", "answer": r"so \boxed{x+x}."}]
    )
    task = make_task(TaskConfig(name="math", path=path))
    half, double = task.problems("train")
    assert half.prompt.startswith("Half?\n\n") and "\\boxed{}" in half.prompt
    assert (half.answer, double.answer) == (r"\frac{1}{2}", "x+x")
    assert task.reward(half, r"\boxed{0.5}").value == 1.0
    assert task.reward(half, r"<think>\boxed{0.5}</think> no").reason == "no_answer"
    assert task.reward(double, r"\boxed{2x}").value == 1.0
    assert task.reward(double, r"\boxed{3x}").value == 0.0


def test_the_reference_is_the_last_box() -> None:
    assert reference(r"first \boxed{1}, then \boxed{\frac{1}{\boxed{2}}}.") == r"\frac{1}{\boxed{2}}"
    assert reference(" 12 ") == "12"


def test_what_the_grader_cannot_judge_has_no_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(TaskConfig(name="math", path=write(tmp_path, [{"problem": "?", "answer": "x+1"}])))
    monkeypatch.setattr(grade.VERIFIER, "compare", lambda _gold, _answer: "timeout")
    score = task.reward(task.problems("train")[0], r"\boxed{1+x}")
    assert (score.value, score.reason) == (None, "timeout")


def test_real_data(shared_data: Path) -> None:
    task = make_task(TaskConfig(name="math", path=str(shared_data / "math500.jsonl")))
    problems = task.problems("train")
    assert len(problems) == 500
    assert all(task.reward(p, f"so $\\boxed{{{p.answer}}}$").value == 1.0 for p in problems[:50])


def test_own_file_with_own_columns(tmp_path: Path) -> None:
    rows = [{"q": "1+1?", "a": "two\n#### 2"}, {"q": "2+2?", "a": "4"}]
    task = make_task(TaskConfig(name="gsm8k", path=write(tmp_path, rows), columns={"prompt": "q", "answer": "a"}))
    problems = task.problems("train")
    assert [p.answer for p in problems] == ["2", "4"]
    assert problems[0].prompt.startswith("1+1?")
    assert task.reward(problems[0], "#### 2.0").value == 1.0


def test_answers_that_are_no_numbers_are_said_or_refused(tmp_path: Path) -> None:
    def task(*answers: str) -> Any:
        path = write(tmp_path, [{"question": "How many?", "answer": answer} for answer in answers])
        return make_task(TaskConfig(name="gsm8k", path=path))

    some = task("#### 1", "yes", "2")
    assert len(some.problems("train")) == 3 and some.notes == [
        "no response can be scored where the answer is no number: rows [2]"
    ]
    assert "rows.jsonl is a number" in refusal(task("yes", "no").problems, "train")
    assert "line 2: 'answer' is empty" in refusal(task("1", " ").problems, "train")
