"""The figures' formulas against values worked out by hand and against brute force."""

from __future__ import annotations

from itertools import combinations
from math import sqrt
from statistics import fmean, variance

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from gspo_cli.evals.answers import Answer
from gspo_cli.evals.benchmark import Grade
from gspo_cli.evals.statistics import clustered_error, detectable, interval, mean_pass_at_k, pass_at_k, powers_up_to
from gspo_cli.evals.summary import score


def brute_force(right: int, n: int, k: int) -> float:
    """The share of all k-subsets of n answers that hold a right one."""
    subsets = list(combinations([i < right for i in range(n)], k))
    return sum(map(any, subsets)) / len(subsets)


@given(st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 8))
    right, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k(right, n, k) == pytest.approx(brute_force(right, n, k), abs=1e-12)


def test_pass_at_k_by_hand() -> None:
    # 4 answers, 1 right: of the 6 pairs 3 hold it
    assert pass_at_k(1, 4, 2) == 0.5
    assert pass_at_k(1, 32, 1) == pytest.approx(1 / 32, abs=1e-15)
    assert (pass_at_k(0, 5, 5), pass_at_k(1, 5, 5), pass_at_k(4, 5, 2)) == (0.0, 1.0, 1.0)
    assert mean_pass_at_k([(1, 4), (4, 4)], 2) == 0.75
    assert mean_pass_at_k([(1, 4), (1, 1)], 2) is None
    assert (powers_up_to(1), powers_up_to(8), powers_up_to(12)) == ([1], [1, 2, 4, 8], [1, 2, 4, 8, 12])


def test_clustered_error_by_hand() -> None:
    # shares 1, 1/2, 0: mean 1/2, squares 1/4 + 0 + 1/4, over 3 x 2; the six answers pooled would give 0.22
    assert clustered_error([1, 0.5, 0]) == pytest.approx(sqrt(0.5 / 6), abs=1e-15)
    assert clustered_error([0.5]) is None
    low, high = interval(0.5, sqrt(0.5 / 6), 3) or (0, 0)
    # t(0.975, 2) = 4.30265
    assert (low, high) == pytest.approx((0.5 - 4.302653 * sqrt(0.5 / 6), 0.5 + 4.302653 * sqrt(0.5 / 6)), abs=1e-5)
    assert interval(0.5, None, 1) is None
    assert detectable(0.1) == pytest.approx(0.39598, abs=1e-5)  # 2.8 sqrt 2 x 0.1


@given(st.lists(st.floats(0, 1), min_size=2, max_size=40))
def test_clustered_error_against_other_formulas(shares: list[float]) -> None:
    n, mean = len(shares), fmean(shares)
    assert clustered_error(shares) == pytest.approx(
        sqrt(sum((p - mean) ** 2 for p in shares) / (n * (n - 1))), abs=1e-12
    )
    assert clustered_error(shares) == pytest.approx(sqrt(variance(shares) / n), abs=1e-12)


def test_the_interval_covers_the_mean_over_problems() -> None:
    """1000 benchmarks of 30 problems, whose shares spread: a 95 % interval holds the truth in 95 % of them."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        truth = rng.beta(2, 3, size=30)
        shares = rng.binomial(8, truth) / 8
        low, high = interval(float(shares.mean()), clustered_error(shares.tolist()), 30) or (0, 0)
        held += low <= 0.4 <= high
    assert scipy.stats.binomtest(held, 1000, 0.95).pvalue > 1e-3


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


def test_identical_samples_change_neither_average_nor_error() -> None:
    verdicts: dict[str, list[str]] = {"a": ["correct"], "b": ["wrong"], "c": ["correct"]}
    one = score(*graded(verdicts))
    many = score(*graded({p: v * 8 for p, v in verdicts.items()}))
    assert [one[k] for k in ("average", "standard_error")] == [many[k] for k in ("average", "standard_error")]


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
