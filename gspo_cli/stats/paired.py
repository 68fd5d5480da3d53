"""Paired tests on one difference per seed, and their power. S = seeds; D_S = treatment minus baseline."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from scipy import optimize, stats

from gspo_cli.stats.problems import Array

Key = TypeVar("Key")
FLAT = 1e-12
"""A smaller spread counts as zero: t would be infinite, p 0 and the interval a point."""
EXACT_UP_TO = 18
"""Most seeds for which all sign flips are enumerated (2^18, about a second)."""
RANDOM_FLIPS = 99_999
RNG_SEED = 20_260_101
"""Seeds the random flips; reported with the result."""
ALPHA, POWER = 0.05, 0.8
FEWEST = 6
"""Seeds below which the exact test cannot reach 5 % (2 / 2^5 = 0.0625)."""
MOST_SEEDS = 1 << 20
DETECTABLE = {6: 1.920, 7: 1.539, 8: 1.318, 9: 1.215, 10: 1.120, 11: 1.028, 12: 0.964}
"""Seeds -> the difference, in standard deviations, that the rule detects in 80 % of 10,000 simulated normal studies
(`python results/programs/statements.py --power --studies 10000`)."""


@dataclass(frozen=True, slots=True)
class PairedT:
    """A paired t test with its interval."""

    n: int
    mean: float
    sd: float
    """Of the differences, with n - 1."""
    t: float
    df: int
    p: float
    """Two-sided, of Student's t."""
    ci_t: tuple[float, float]
    """95 %, Student's."""
    skew: float
    """Sample skewness of the differences (unbiased moments)."""
    p_skew: float
    """Two-sided, of the t corrected for skewness."""
    ci: tuple[float, float]
    """The headline: the smallest interval around Student's and the skewness-corrected one. From six seeds on it
    excludes 0 exactly when `p_mean` is below 5 %; with fewer the test is stricter."""
    ci_equal: tuple[float, float]
    """The same at the level of `p_equal`: inside the margin exactly when all four one-sided tests pass."""

    @property
    def p_mean(self) -> float:
        """The larger of p and the corrected p, the latter scaled to its own level."""
        return min(1.0, max(self.p, self.p_skew * ALPHA / levels(self.n).skew))


@dataclass(frozen=True, slots=True)
class SignFlip:
    """A randomisation test of the mean."""

    p: float
    exact: bool
    flips: int


@dataclass(frozen=True, slots=True)
class Levels:
    """Levels of the tests with this many seeds, chosen by simulation so that no sentence about the mean is false in
    more than 6 % of studies, also where the differences are as skewed as an exponential (docs/compare.md)."""

    skew: float
    """Two-sided, of the skewness-corrected test; the plain one has `ALPHA`."""
    equal: float
    """One-sided, of the two tests for equality."""
    interval: float
    """Two-sided, of the skewness-corrected part of the headline interval."""
    stretch: float
    """How many times as far from the mean as Student's a skewness-corrected end may lie."""


def levels(n: int) -> Levels:
    """The levels for n seeds: tests are stricter with few, where the skewness can hardly be seen."""
    if n < FEWEST:
        return Levels(0.025, 0.015, 0.08, float("inf"))
    return Levels(0.06, 0.02, 0.06, 2.5) if n <= 8 else Levels(0.05, 0.02, 0.05, 2.5)


def is_flat(D_S: Array, largest: float = 1.0) -> bool:
    """Whether all differences are equal, so that their spread cannot be estimated; but for rounding, where they are
    differences of numbers of up to `largest`."""
    return len(D_S) < 2 or float(np.std(D_S, ddof=1)) <= FLAT * max(1.0, largest)


def skewness(D_S: Array) -> float:
    """n^2 / ((n - 1)(n - 2)) times the third central moment over sd^3; 0 for two differences."""
    n = len(D_S)
    centred_S = np.asarray(D_S) - np.mean(D_S)
    return 0.0 if n < 3 else float((centred_S**3).mean() * n**2 / ((n - 1) * (n - 2)) / np.std(D_S, ddof=1) ** 3)


def corrected_t(t: Array | float, skew: float, n: int) -> Any:
    """Hall's monotone transformation of t (J. R. Stat. Soc. B 54:221, 1992), which removes most of the effect of
    skewness on its distribution:

    g(t) = t + a t^2 + a^2 t^3 / 3 + a / 2,  a = skew / (3 sqrt(n));  the first three terms are ((1 + a t)^3 - 1) / 3a

    g is flat around t = -1 / a, where the expansion says nothing: with six differences and a skewness of 1, a third of
    a unit of g spans six units of t. So from six differences on t shrinks by `levels(n).stretch` at most. With fewer,
    all of the correction is needed to cover.
    """
    a = skew / (3 * n**0.5)
    g, least = t + a * t**2 + a**2 * t**3 / 3 + a / 2, t / levels(n).stretch
    return np.where(np.asarray(t) > 0, np.maximum(g, least), np.minimum(g, least))


def _uncorrected_t(corrected: float, skew: float, n: int) -> float:
    """The inverse of `corrected_t`, for values beyond 1 on either side."""
    a, most = skew / (3 * n**0.5), abs(levels(n).stretch * corrected)
    t = corrected if abs(a) < 1e-9 else (np.cbrt(1 + 3 * a * (corrected - a / 2)) - 1) / a
    return float(np.clip(t, -most, most))


def paired_t(D_S: Array, looks: int = 1) -> PairedT:
    """Test of mean difference 0, df = N - 1: Student's t and the same corrected for skewness, with their intervals.

    Student's interval is mean +- t(.975, N - 1) sd / sqrt(N). With 6 to 20 differences as skewed as an exponential it
    covers the mean in 88 to 92 % of studies only. With several planned `looks` every interval is at the level of one
    look, a `looks`-th of its own (Bonferroni); the p-values are not adjusted.
    Errors: asserts two or more differences that are not all equal (see `is_flat`).
    """
    assert not is_flat(D_S), "equal differences have no t"
    n, mean, sd = len(D_S), float(np.mean(D_S)), float(np.std(D_S, ddof=1))
    skew, error, level = skewness(D_S), sd / n**0.5, levels(n)
    test = stats.ttest_1samp(D_S, 0.0, nan_policy="raise")
    t = float(test.statistic)

    def student(tail: float) -> tuple[float, float]:
        half = float(stats.t.isf(tail / looks, n - 1)) * error
        return mean - half, mean + half

    def corrected(tail: float) -> tuple[float, float]:
        quantile = float(stats.t.isf(tail / looks, n - 1))
        ends = (_uncorrected_t(q, skew, n) for q in (quantile, -quantile))
        low, high = (mean - error * end for end in ends)
        return low, high

    def around(*intervals: tuple[float, float]) -> tuple[float, float]:
        return min(low for low, _ in intervals), max(high for _, high in intervals)

    return PairedT(
        n, mean, sd, t, n - 1, float(test.pvalue), student(ALPHA / 2), skew,
        float(2 * stats.t.sf(abs(corrected_t(t, skew, n)), n - 1)),
        around(student(ALPHA / 2), corrected(level.interval / 2)),
        around(student(level.equal), corrected(level.equal)),
    )  # fmt: skip


def sign_flip(D_S: Array) -> SignFlip:
    """Randomisation test of the mean: without an effect, each difference is equally likely to have either sign.

    All 2^N flips up to `EXACT_UP_TO` seeds, else `RANDOM_FLIPS` random ones. The smallest two-sided p is 2 / 2^N.
    Sums that differ from the observed one only by rounding count as ties. `scipy.stats.permutation_test` scales its
    tolerance by the mean, and misses ties when the mean is near 0.
    """
    D_S = np.asarray(D_S, dtype=np.float64)
    exact, sums = len(D_S) <= EXACT_UP_TO, np.zeros(1)
    if exact:
        for difference in D_S:
            sums = np.concatenate([sums + difference, sums - difference])
    else:
        signs = np.random.default_rng(RNG_SEED).choice([-1.0, 1.0], (RANDOM_FLIPS, len(D_S)))
        sums = np.append(signs @ D_S, D_S.sum())
    extreme = np.abs(sums) >= np.abs(D_S.sum()) - 1e-12 * np.abs(D_S).sum()
    return SignFlip(float(extreme.mean()), exact, 2 ** len(D_S) if exact else RANDOM_FLIPS)


def tost(D_S: Array, margin: float) -> tuple[float, float]:
    """Two one-sided t tests: p of "the mean is above -margin" and of "below margin".

    Errors: asserts a spread, as `paired_t`.
    """
    assert margin > 0 and not is_flat(D_S)
    above = stats.ttest_1samp(D_S, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(D_S, margin, alternative="less").pvalue
    return float(above), float(below)


def p_equal(D_S: Array, margin: float) -> float:
    """The largest p of `tost` and of the same tests corrected for skewness; it counts up to `levels(n).equal`.

    Errors: asserts a spread, as `paired_t`.
    """
    n, skew = len(D_S), skewness(D_S)
    error = float(np.std(D_S, ddof=1)) / n**0.5
    above, below = ((float(np.mean(D_S)) + shift) / error for shift in (margin, -margin))
    corrected = min(float(corrected_t(above, skew, n)), -float(corrected_t(below, skew, n)))
    return max(*tost(D_S, margin), float(stats.t.sf(corrected, n - 1)))


def holm(p: Mapping[Key, float | None]) -> dict[Key, float]:
    """Holm's adjusted p-values: the i-th smallest of m times m - i + 1, running maximum, at most 1. What has no p is no
    part of the family."""
    family = sorted(((key, value) for key, value in p.items() if value is not None), key=lambda item: item[1])
    found, running = dict[Key, float](), 0.0
    for rank, (key, value) in enumerate(family):
        running = max(running, min(1.0, value * (len(family) - rank)))
        found[key] = running
    return found


def mcnemar(only_baseline: int, only_treatment: int) -> float:
    """Exact two-sided McNemar test of the pairs in which only one run collapsed; 1 if there is no such pair."""
    discordant = only_baseline + only_treatment
    return 1.0 if discordant == 0 else float(stats.binomtest(only_baseline, discordant).pvalue)


def power(effect_sd: float, n: int) -> float:
    """Probability that the two-sided paired t test at 5 % detects a true difference of `effect_sd` standard deviations.

    The noncentral F form; scipy's noncentral t returns NaN in the far tail, which breaks a root finder.
    """
    critical = stats.t.ppf(1 - ALPHA / 2, n - 1) ** 2
    return float(stats.ncf.sf(critical, 1, n - 1, n * effect_sd**2))


def mde(sd: float, n: int) -> float:
    """The smallest true difference that the t test alone detects with 80 % power, in the unit of `sd`.

    It promises too much: where its power is 80 %, that of the whole rule for "better" (paired t, the same corrected for
    skewness, and the exact sign flip) is 58, 67 and 70 % at six, seven and eight seeds.
    """
    return float(sd * optimize.brentq(lambda effect: power(effect, n) - POWER, 1e-3, 20.0, xtol=1e-12, rtol=1e-12))


def rule_mde(sd: float, n: int) -> float | None:
    """The smallest true difference that the rule calls better with 80 % power; None where it cannot say so at all.

    Above twelve seeds the t test's own difference, 7 % larger up to 15 seeds and 5 % beyond (simulated likewise: 7.1 %
    at 14 seeds, 4.7 % at 16, 4.3 % at 20, 3.4 % at 30).
    """
    if n < FEWEST:
        return None
    return sd * DETECTABLE[n] if n in DETECTABLE else mde(sd, n) * (1.07 if n <= 15 else 1.05)


def rule_seeds_needed(sd: float, margin: float) -> int | None:
    """The fewest seeds with which the rule detects a true difference of `margin` with 80 % power, at least `FEWEST`;
    None beyond a million."""

    def enough(n: int) -> bool:
        found = rule_mde(sd, n)
        return found is not None and found <= margin * (1 + 1e-9)

    high = FEWEST
    while not enough(high):
        high *= 2
        if high > MOST_SEEDS:
            return None
    return bisect_left(range(high), True, lo=max(FEWEST, high // 2), key=enough)


def sd_range(n: int) -> tuple[float, float]:
    """95 % range of the true over the estimated standard deviation, on which power and seeds rest."""
    low, high = ((n - 1) / stats.chi2.ppf([0.975, 0.025], n - 1)) ** 0.5
    return float(low), float(high)
