"""The start model's share of the variance: worked by hand, and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from gspo_cli.stats.starts import start_share


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
