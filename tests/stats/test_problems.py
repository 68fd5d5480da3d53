"""pass@k, the error of a score, Pareto k-hat and the start model's share: by hand, by brute force, by known tails."""

import math
from itertools import combinations
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gspo_cli.stats.pareto import FEWEST, pareto_k, shape
from gspo_cli.stats.problems import (
    clustered_error,
    detectable,
    interval,
    mean_pass_at_k,
    pass_at_k,
    pass_at_k_interval,
    powers_up_to,
)
from gspo_cli.stats.starts import start_share


def brute_force(right: int, n: int, k: int) -> float:
    """The share of all k-subsets of n answers that hold a right one."""
    subsets = list(combinations([i < right for i in range(n)], k))
    return sum(map(any, subsets)) / len(subsets)


@given(st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 8))
    right, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k(n, right, k) == pytest.approx(brute_force(right, n, k), abs=1e-12)


def test_pass_at_k_by_hand() -> None:
    # 4 answers, 1 right: of the 6 pairs 3 hold it
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(32, 1, 1) == pytest.approx(1 / 32, abs=1e-15)
    assert (pass_at_k(5, 0, 5), pass_at_k(5, 1, 5), pass_at_k(5, 4, 2)) == (0.0, 1.0, 1.0)
    assert mean_pass_at_k([(4, 1), (4, 4)], 2) == 0.75
    assert mean_pass_at_k([(4, 1), (1, 1)], 2) is None
    assert (powers_up_to(1), powers_up_to(8), powers_up_to(12)) == ([1], [1, 2, 4, 8], [1, 2, 4, 8, 12])


def test_clustered_error_by_hand() -> None:
    # shares 1, 1/2, 0: mean 1/2, squares 1/4 + 0 + 1/4, over 3 x 2; the six answers pooled would give 0.22
    assert clustered_error([1, 0.5, 0]) == pytest.approx(sqrt(0.5 / 6), abs=1e-15)
    assert clustered_error([0.5]) is None
    low, high = interval(0.5, sqrt(0.5 / 6), 3) or (0, 0)
    # n = 0.25 / (0.5 / 6) = 3 answers, t(0.975, 2) = 4.302653: at one half, Wilson's half width is z / 2 sqrt(n + z^2)
    half = 4.302653 / (2 * sqrt(3 + 4.302653**2))
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)
    assert interval(0.5, None, 1) is None
    assert detectable(0.1) == pytest.approx(0.39598, abs=1e-5)  # 2.8 sqrt 2 x 0.1


@pytest.mark.parametrize(("a", "b", "samples", "most"), [(2, 3, 8, 971), (2, 18, 4, 1000), (0.4, 19.6, 4, 1000)])
def test_the_interval_covers_the_mean_over_problems(a: float, b: float, samples: int, most: int) -> None:
    """1000 benchmarks of 30 problems, whose shares spread: a 95 % interval holds the truth in 95 % of them, or in more
    where right answers are rare."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(1000):
        shares = rng.binomial(samples, rng.beta(a, b, size=30)) / samples
        low, high = interval(float(shares.mean()), clustered_error(shares.tolist()), 30) or (0, 0)
        held += low <= a / (a + b) <= high
    assert 930 <= held <= most


def test_an_interval_of_shares_is_bounded_and_never_empty() -> None:
    # 0 of 30: [0, z^2 / (30 + z^2)] with t(0.975, 29) = 2.045230
    assert interval(0.0, 0.0, 30) == pytest.approx((0.0, 2.04523**2 / (30 + 2.04523**2)), abs=1e-6)
    assert interval(1.0, 0.0, 30) == pytest.approx((30 / (30 + 2.04523**2), 1.0), abs=1e-6)
    one = [1.0] + [0.0] * 29
    low, high = interval(1 / 30, clustered_error(one), 30) or (0, 0)
    assert 0 < low < 1 / 30 < high < 0.2
    assert pass_at_k_interval([(8, 0)] * 30, 4) == interval(0.0, 0.0, 30)


@pytest.mark.parametrize("k", [-0.5, 0.0, 0.3, 0.7, 1.2])
def test_shape_of_a_generalised_pareto_distribution(k: float) -> None:
    """Quantiles of the distribution itself, sigma = 2: x = sigma ((1 - p)^-k - 1) / k, or -sigma log(1 - p)."""
    p = (np.arange(3000) + 0.5) / 3000
    x = -2 * np.log1p(-p) if k == 0 else 2 * ((1 - p) ** -k - 1) / k
    assert shape(x) == pytest.approx(k, abs=0.03)
    assert shape(1000 * x) == pytest.approx(shape(x), abs=1e-9)  # the scale does not matter


def test_weights_of_gaussian_log_ratios_get_heavier_with_their_spread() -> None:
    draws = np.random.default_rng(0).standard_normal(4000)
    found = [pareto_k(np.exp(sigma * draws)) for sigma in (0.1, 1.0, 3.0)]
    assert found[0] is not None and found[1] is not None and found[2] is not None
    assert found[0] < found[1] < 0.5 and found[2] > 0.7


def test_only_the_upper_tail_counts() -> None:
    p = (np.arange(4000) + 0.5) / 4000
    heavy = (1 - p) ** -0.8
    assert pareto_k(heavy) == pytest.approx(0.8, abs=0.1)
    assert pareto_k(np.concatenate([heavy, np.zeros(4000)])) == pytest.approx(0.8, abs=0.15)


def test_no_tail_and_too_few() -> None:
    assert pareto_k(np.ones(100)) == -math.inf
    assert pareto_k(np.linspace(0, 1, FEWEST - 1)) is None


def test_a_worked_example() -> None:
    # three starts of two seeds: means 2, 6, 10; between 2 * (16 + 0 + 16) / 2 = 32, within (2 + 2 + 2) / 3 = 2
    found = start_share(np.array([1.0, 3, 5, 7, 9, 11]), "aabbcc")
    assert found is not None and (found.starts, found.seeds) == (3, 6)
    assert found.share == pytest.approx((32 - 2) / (32 + 2))
    assert (found.sd_starts, found.sd_seeds) == (pytest.approx(15**0.5), pytest.approx(2**0.5))
    ends = [(16 / f - 1) / (16 / f + 1) for f in stats.f.ppf([0.975, 0.025], 2, 3)]
    assert found.ci == pytest.approx((max(0.0, ends[0]), ends[1]))


def test_no_share_without_shared_starts_or_spread() -> None:
    assert start_share(np.arange(4.0), "abcd") is None and start_share(np.arange(4.0), "aaaa") is None
    assert start_share(np.ones(4), "aabb") is None
    whole = start_share(np.array([1.0, 1, 2, 2]), "aabb")
    assert whole is not None and (whole.share, whole.ci) == (1.0, (1.0, 1.0))


def test_the_interval_covers() -> None:
    rng, covered = np.random.default_rng(0), 0
    for _ in range(400):
        x_S = np.repeat(rng.normal(0, 1, 6), 2) + rng.normal(0, 1, 12)
        found = start_share(x_S, np.repeat(np.arange(6), 2).tolist())
        covered += found is not None and found.ci[0] <= 0.5 <= found.ci[1]
    assert 0.92 <= covered / 400 <= 0.98
