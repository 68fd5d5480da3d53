"""Programs as a task: rows in LiveCodeBench's schema, rewards from the grader, a run that trains on them."""

import json
from pathlib import Path
from typing import Any

import pytest
from program import Gspo, ok, refusal, save_tiny, strict_lines, write_rows
from sandboxes import own_sandbox

from gspo_cli.config import TaskConfig
from gspo_cli.sandbox.contract import Job
from gspo_cli.tasks import make_task
from gspo_cli.tasks.code import Code
from gspo_cli.types import Problem, Score

DOUBLE = {
    "question_content": "Read a number and print its double.",
    "starter_code": "",
    "public_test_cases": json.dumps([{"input": "2\n", "output": "4\n", "testtype": "stdin"}]),
    "private_test_cases": json.dumps([{"input": "7\n", "output": "14\n", "testtype": "stdin"}]),
    "metadata": "{}",
}
NEGATE = DOUBLE | {
    "question_content": "Negate a number.",
    "starter_code": "class Solution:\n    def negate(self, n: int) -> int:\n        ",
    "public_test_cases": json.dumps([{"input": "2", "output": "-2", "testtype": "functional"}]),
    "private_test_cases": "",
    "metadata": json.dumps({"func_name": "negate"}),
}
TORN = DOUBLE | {"private_test_cases": "eJxLTC4=" * 3}
EMPTY = DOUBLE | {"public_test_cases": "[]", "private_test_cases": "[]"}


@pytest.fixture(autouse=True, scope="module")
def _needs_a_sandbox() -> None:
    own_sandbox().close()


def write(folder: Path, *rows: dict[str, str]) -> str:
    return str(write_rows(folder / "programs.jsonl", rows))


def fenced(program: str) -> str:
    return f"<think>```\nprint()\n```</think>Here:\n```python\n{program}\n```\n"


@pytest.mark.parametrize("grader", ["official", "script"])
def test_rewards_are_verdicts(tmp_path: Path, grader: Any) -> None:
    task = make_task(TaskConfig(name="code", grader=grader, path=write(tmp_path, DOUBLE, NEGATE)))
    double, negate = task.problems("train")
    assert DOUBLE["question_content"] in double.prompt and "stdin" in double.prompt
    assert "def negate(self, n: int) -> int:\n```" in negate.prompt
    assert isinstance(task, Code)
    found = task.rewards(
        [
            (double, fenced("print(2 * int(input()))")),
            (double, fenced("print(4)")),  # the public test only
            (double, "print(2 * int(input()))"),  # no fences: no program
            (negate, fenced("class Solution:\n    def negate(self, n):\n        return -n")),
            (negate, fenced("class Solution:\n    def negate(self, n):\n        return str(-n)")),
        ]
    )
    assert [s.value for s in found] == [1.0, 0.0, 0.0, 1.0, 0.0]
    assert (found[0].reason, found[1].reason) == ("accepted", "wrong_answer")
    assert task.reward(double, fenced("print(2 * int(input()))")) == found[0]


def test_problems_that_cannot_be_graded_are_left_out_and_named(tmp_path: Path) -> None:
    task = make_task(TaskConfig(name="code", path=write(tmp_path, EMPTY, DOUBLE, TORN)))
    assert [p.id for p in task.problems("train")] == ["train-1"]
    assert isinstance(task, Code)
    assert len(task.notes) == 2 and "no tests: 1 (train-0)" in task.notes[0] and "train-2" in task.notes[1]


def test_a_sandbox_that_does_not_start_gives_no_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(TaskConfig(name="code", path=write(tmp_path, DOUBLE)))
    (double,) = task.problems("train")

    def start(_self: object, _job: Job) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("gspo_cli.sandbox.bubblewrap.Bubblewrap.start", start)
    score = task.reward(double, fenced("print(2 * int(input()))"))
    assert (score.value, score.reason) == (None, "grader_error")


def test_a_reward_of_ones_own_replaces_the_graders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_reward.py").write_text("def length(problem, text):\n    return len(text)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    task = make_task(TaskConfig(name="code", path=write(tmp_path, DOUBLE), reward="own_reward:length"))
    assert isinstance(task, Code)
    problem = Problem("train-0", "", "")
    assert task.rewards([(problem, "abc"), (problem, "")]) == [Score(3.0, "custom"), Score(0.0, "custom")]


@pytest.mark.parametrize(
    ("rows", "words"), [([], "without a data file"), ([EMPTY], "can be graded"), ([{"a": "b"}], "has no column")]
)
def test_bad_data(tmp_path: Path, rows: list[dict[str, str]], words: str) -> None:
    path = write(tmp_path, *rows) if rows else None
    assert words in refusal(lambda: make_task(TaskConfig(name="code", path=path)).problems("train"))


def test_it_trains(gspo_here: Gspo, tmp_path: Path) -> None:
    settings = (
        f"task.path={write(tmp_path, DOUBLE, NEGATE, DOUBLE, EMPTY)}", "model.dtype=float32", "rollout.prompts=2",
        "rollout.samples=2", "rollout.max_new_tokens=8", "train.minibatches=2", "model.threads=1", "train.steps=2",
    )  # fmt: skip
    model = save_tiny(tmp_path / "model", tokenizer="bytes")
    train = ("train", "code-qwen3-4b", "--model", model, "--out", tmp_path / "results")
    done = ok(gspo_here(*train, *(f"--set={key}" for key in settings)))
    assert "left out, because no tests: 1" in done.err
    lines = [line for log in tmp_path.glob("results/*/*/metrics.jsonl") for line in strict_lines(log)]
    assert [line["metrics"]["reward/mean"] for line in lines if line["kind"] == "rollout"] == [0.0, 0.0]
