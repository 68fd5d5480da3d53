"""The scores of a summary against values worked out by hand."""

from itertools import pairwise
from math import sqrt

import pytest

from gspo_cli.evals.benchmark import Grade
from gspo_cli.evals.runner import PORTION, PORTION_TOKENS, portions
from gspo_cli.evals.store import Answer
from gspo_cli.evals.summary import score
from gspo_cli.types import Prompt


def answer(problem: str, sample: int, tokens: int = 2, finish: str = "stop") -> Answer:
    return Answer(problem, sample, sample, None, f"{problem}{sample}", False, tokens, finish)


def graded(rows: dict[str, list[str]]) -> tuple[list[Answer], list[Grade]]:
    answers = [answer(p, i, tokens=i + 1) for p, verdicts in rows.items() for i in range(len(verdicts))]
    return answers, [Grade(v, v, "1", "box") for verdicts in rows.values() for v in verdicts]


def test_scores_by_hand() -> None:
    found = score(*graded({"a": ["correct", "correct"], "b": ["correct", "wrong"], "c": ["no_answer", "wrong"]}))
    assert found["average"] == 0.5
    assert found["standard_error"] == pytest.approx(sqrt(0.5 / 6))
    assert found["pass_at_k"] == {"1": 0.5, "2": pytest.approx(2 / 3)}
    assert found["verdicts"] == {"correct": 3, "wrong": 2, "no_answer": 1, "grader_error": 0}
    assert (found["mean_tokens"], found["truncated_frac"], found["no_answer_frac"]) == (1.5, 0.0, pytest.approx(1 / 6))
    assert not found["incomplete"]


def test_what_the_grader_failed_on_is_left_out_and_counted() -> None:
    found = score(*graded({"a": ["correct", "grader_error"], "b": ["wrong", "wrong"], "c": ["grader_error"] * 2}))
    assert found["average"] == 0.5  # a: 1 of 1, b: 0 of 2, c: nothing to say
    assert (found["num_problems"], found["num_problems_graded"], found["grader_errors"]) == (3, 2, 3)
    assert found["incomplete"]
    nothing = score(*graded({"a": ["grader_error"]}))
    assert nothing["average"] is None and nothing["incomplete"] and nothing["pass_at_k"] == {}


def test_one_failure_in_a_hundred_is_still_a_figure() -> None:
    rows: dict[str, list[str]] = {str(i): ["wrong"] for i in range(99)}
    assert not score(*graded(rows | {"x": ["grader_error"]}))["incomplete"]
    assert score(*graded(rows | {"x": ["grader_error"] * 2}))["incomplete"]


def test_box_only_score() -> None:
    answers = [answer("a", 0), answer("a", 1)]
    found = score(answers, [Grade("correct", "", "1", "phrase"), Grade("correct", "", "1", "box")])
    assert (found["average"], found["average_box_only"]) == (1.0, 0.5)


LENGTHS = [(37 * i) % 901 + 1 for i in range(400)] + [3000, 100_000]
PROMPTS = {f"p{i}": Prompt(f"p{i}", (1,) * length) for i, length in enumerate(LENGTHS)}
WANTED = [(problem, sample) for problem in PROMPTS for sample in range(3)]


def test_the_built_in_engine_gets_prompts_of_like_length() -> None:
    cut = portions(PROMPTS, 3, 64, "transformers")
    assert sorted(key for keys in cut for key in keys) == sorted(WANTED)
    lengths = [[len(PROMPTS[problem].token_ids) for problem, _ in keys] for keys in cut]
    assert all(max(one) <= min(other) for one, other in pairwise(lengths))
    assert all(len(one) * (max(one) + 64) <= PORTION_TOKENS for one in lengths[:-3])
    assert [len(one) for one in lengths[-3:]] == [1, 1, 1]  # a prompt beyond the bound comes alone
    assert max(map(len, cut)) == PORTION
    padded = sum(len(one) * max(one) for one in lengths)
    assert padded < 1.2 * sum(map(sum, lengths))


def test_vllm_gets_many_in_the_order_of_the_problems() -> None:
    cut = portions(PROMPTS, 3, 32768, "vllm")
    assert [key for keys in cut for key in keys] == WANTED
    assert [len(keys) for keys in cut[:-1]] == [PORTION] * (len(cut) - 1)
