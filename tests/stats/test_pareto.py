"""Pareto k-hat against distributions whose tail is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gspo_cli.stats.pareto import FEWEST, pareto_k, shape


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
