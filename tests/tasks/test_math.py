"""MATH as a task: rows from a file, the reference of a worked answer, rewards from the checker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import Gspo, strict_lines

from gspo_cli.config import TaskConfig, TinyModel
from gspo_cli.models.tiny import build_tiny
from gspo_cli.rewards.math import grade
from gspo_cli.tasks import make_task
from gspo_cli.tasks.math import reference


def write(folder: Path, rows: list[dict[str, str]]) -> str:
    path = folder / "math.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


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


def test_it_trains(gspo_here: Gspo, tmp_path: Path) -> None:
    model, tokenizer = build_tiny(TinyModel(kind="qwen3", tokenizer="bytes", hidden=16, layers=1), seed=0)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    path = write(tmp_path, [{"problem": f"{i}x+1=", "answer": f"{i}x+1"} for i in range(8)])
    done = gspo_here(
        "train", "math-qwen3-4b", "--model", tmp_path / "model", "--out", tmp_path / "results", "--steps", "2",
        *(f"--set={key}" for key in (
            f"task.path={path}", "model.dtype=float32", "rollout.prompts=4", "rollout.samples=2",
            "rollout.max_new_tokens=8", "train.minibatches=2", "model.threads=1",
        )),
    )  # fmt: skip
    assert done.code == 0, done.err
    lines = [line for log in tmp_path.glob("results/*/*/metrics.jsonl") for line in strict_lines(log)]
    assert [line["metrics"]["reward/mean"] for line in lines if line["kind"] == "rollout"] == [0.0, 0.0]
