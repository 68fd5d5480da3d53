"""Tests on paired differences between two algorithms, one a seed.

S = seeds (N of them); D_S = treatment minus baseline, seed by seed

The unit is the training run: a run's thousands of answers are one draw of the algorithm's luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

Array = np.ndarray[Any, Any]

FLAT = 1e-12
"""A spread below this is none: t would be infinite, its p 0 and the interval a point."""
EXACT_UP_TO = 18
"""Seeds for which all sign flips are tried (2^18, about a second)."""
RANDOM_FLIPS = 99_999
RNG_SEED = 20_260_101
"""Of the flips drawn beyond that; printed with the result."""


@dataclass(frozen=True, slots=True)
class PairedT:
    """A paired t test with its interval."""

    n: int
    mean: float
    sd: float
    """Of the differences, with n - 1."""
    se: float
    t: float
    df: int
    p: float
    """Two-sided."""
    ci: tuple[float, float]
    """95 %."""
    ci90: tuple[float, float]
    """90 %: inside the margin exactly when both one-sided tests of `tost` pass at 5 %."""


@dataclass(frozen=True, slots=True)
class SignFlip:
    """A randomisation test of the mean."""

    p: float
    exact: bool
    flips: int


def is_flat(D_S: Array) -> bool:
    """Whether the differences are all equal, so that nothing can be said about their spread."""
    return len(D_S) < 2 or float(np.std(D_S, ddof=1)) <= FLAT


def paired_t(D_S: Array) -> PairedT:
    """Student's t test of mean difference 0, df = N - 1, interval mean +- t(.975, N - 1) sd / sqrt(N).

    Errors: asserts two or more differences that are not all equal (see `is_flat`).
    """
    assert not is_flat(D_S), "equal differences have no t"
    n, mean, sd = len(D_S), float(np.mean(D_S)), float(np.std(D_S, ddof=1))
    found = stats.ttest_1samp(D_S, 0.0, nan_policy="raise")
    low, high = found.confidence_interval(0.95)
    low90, high90 = found.confidence_interval(0.90)
    return PairedT(
        n, mean, sd, sd / n**0.5, float(found.statistic), n - 1, float(found.pvalue),
        (float(low), float(high)), (float(low90), float(high90)),
    )  # fmt: skip


def sign_flip(D_S: Array, alternative: Literal["two-sided", "greater", "less"] = "two-sided") -> SignFlip:
    """Randomisation test of the mean: without an effect each difference could as well have had the other sign.

    All 2^N flips up to `EXACT_UP_TO` seeds, else `RANDOM_FLIPS` drawn ones. The smallest two-sided p is 2 / 2^N.
    Flips that differ from the data by rounding alone count as equal to it; `scipy.stats.permutation_test` measures that
    against the mean, and misses ties where the mean is near 0.
    """
    D_S = np.asarray(D_S, dtype=np.float64)
    exact, sums = len(D_S) <= EXACT_UP_TO, np.zeros(1)
    if exact:
        for difference in D_S:
            sums = np.concatenate([sums + difference, sums - difference])
    else:
        signs = np.random.default_rng(RNG_SEED).choice([-1.0, 1.0], (RANDOM_FLIPS, len(D_S)))
        sums = np.append(signs @ D_S, D_S.sum())
    fold = {"two-sided": np.abs, "greater": np.positive, "less": np.negative}[alternative]
    extreme = fold(sums) >= fold(D_S.sum()) - 1e-12 * np.abs(D_S).sum()
    return SignFlip(float(extreme.mean()), exact, 2 ** len(D_S) if exact else RANDOM_FLIPS)


def tost(D_S: Array, margin: float) -> tuple[float, float]:
    """Two one-sided t tests: p of "the mean is above -margin" and of "below margin"; the larger is p_equal.

    Errors: asserts a spread, as `paired_t`.
    """
    assert margin > 0 and not is_flat(D_S)
    above = stats.ttest_1samp(D_S, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(D_S, margin, alternative="less").pvalue
    return float(above), float(below)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: the i-th smallest of m times m - i + 1, running maximum, at most 1."""
    adjusted, running = [0.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        running = max(running, min(1.0, p[index] * (len(p) - rank)))
        adjusted[index] = running
    return adjusted


def mcnemar(only_baseline: int, only_treatment: int) -> float:
    """Exact two-sided McNemar test of the pairs in which one run alone collapsed; 1 without such a pair."""
    discordant = only_baseline + only_treatment
    return 1.0 if discordant == 0 else float(stats.binomtest(only_baseline, discordant).pvalue)
