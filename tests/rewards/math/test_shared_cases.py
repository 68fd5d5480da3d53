"""The labelled cases and the real answers of the shared data folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gspo_cli.rewards.math.algebra import refused
from gspo_cli.rewards.math.grade import grade_aime, grade_math, grade_number, integer
from gspo_cli.rewards.math.typography import tidy
from gspo_cli.rewards.verdict import Verdict

CHECKERS: dict[str, Callable[[str, str], Verdict]] = {"aime": grade_aime, "math": grade_math}
OUR_POLICY = {"int-percent"}
"""50% is not the integer 50."""


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_labelled_case(shared_data: Path) -> None:
    cases = rows(shared_data / "math_cases_dev.jsonl")
    grade_math(r"\boxed{x+1}", "1+x")  # the worker is up
    for case in cases:
        start = time.monotonic()
        found = CHECKERS[case["kind"]](case["response"], case["gold"])
        assert time.monotonic() - start < 4
        assert found.verdict != "grader_error", case["id"]
        assert found.passed == (case["correct"] and case["id"] not in OUR_POLICY), case["id"]
    assert len(cases) == 86


@pytest.mark.parametrize(("name", "how"), [("math500", grade_math), ("math_train_slice", grade_math)])
def test_no_gold_answer_is_refused_and_each_is_right(
    shared_data: Path, name: str, how: Callable[[str, str], Verdict]
) -> None:
    golds = [row["answer"] for row in rows(shared_data / f"{name}.jsonl")]
    assert sum(not gold for gold in golds) == (name == "math_train_slice")  # one has no answer
    for gold in filter(None, golds):
        assert not refused(tidy(gold)), gold
        assert how(f"\\boxed{{{gold}}}", gold).passed, gold


def test_the_integers_of_aime(shared_data: Path) -> None:
    for name in ("aime24", "aime25"):
        golds = [str(row["answer"]) for row in rows(shared_data / f"{name}.jsonl")]
        assert [integer(gold) for gold in golds] == [int(gold) for gold in golds]


def test_the_worked_answers_of_gsm8k(shared_data: Path) -> None:
    answers = [row["answer"] for row in rows(shared_data / "gsm8k_test.jsonl")]
    golds = [answer.rsplit("####", 1)[1].strip() for answer in answers]
    assert all(grade_number(answer, gold).passed for answer, gold in zip(answers, golds, strict=True))
    shifted = golds[1:] + golds[:1]
    same = sum(grade_number(answer, gold).passed for answer, gold in zip(answers, shifted, strict=True))
    assert same == sum(
        float(a.replace(",", "")) == float(b.replace(",", "")) for a, b in zip(golds, shifted, strict=True)
    )
