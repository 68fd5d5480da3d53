"""Statistics of a benchmark's problems and samples: error and interval of a score, pass@k, differences by problem.

S = seeds, J = problems, C = clusters of problems; p = a run's share of right answers to a problem; d_SJ = treatment
minus baseline
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

DETECTABLE = 2.8
"""Standard errors of a difference that a two-sided 5 % test detects in 80 % of cases (1.96 + 0.84)."""


def t_quantile(df: int) -> float:
    """The 97.5 % quantile of Student's t, for two-sided 95 % intervals."""
    from scipy.special import stdtrit  # training evaluates too, and starts without scipy

    return float(stdtrit(df, 0.975))


def clustered_error(shares_J: Sequence[float]) -> float | None:
    """sqrt(sum (p_j - mean)^2 / (J (J - 1))) of the problems' shares of right answers; None for one problem.

    Answers to one problem are not independent, so what counts is the number of problems, not of answers.
    """
    return stdev(shares_J) / math.sqrt(len(shares_J)) if len(shares_J) > 1 else None


def interval(mean: float, error: float | None, num_problems: int) -> tuple[float, float] | None:
    """The 95 % interval of a mean of shares with a clustered error: Wilson's, with the t quantile (J - 1 degrees of
    freedom) and the number n = mean (1 - mean) / error^2 of independent answers that would have the same error.

    It stays within [0, 1] and never vanishes: where all shares are 0 or all are 1, n = J. A plain t interval is empty
    there, and reaches below 0 at one right answer of 30.
    """
    if error is None:
        return None
    spread, z = mean * (1 - mean), t_quantile(num_problems - 1)
    n = spread / error**2 if error > 0 and spread > 0 else num_problems
    middle, half = mean + z**2 / (2 * n), z * math.sqrt(spread / n + z**2 / (4 * n**2))
    return max(0.0, (middle - half) / (1 + z**2 / n)), min(1.0, (middle + half) / (1 + z**2 / n))


def t_interval(mean: float, error: float | None, num_problems: int) -> tuple[float, float] | None:
    """The 95 % interval of a mean of any values with a clustered error, by Student's t (J - 1 degrees of freedom)."""
    half = None if error is None else t_quantile(num_problems - 1) * error
    return None if half is None else (mean - half, mean + half)


def detectable(error: float | None) -> float | None:
    """The smallest detectable difference to a second, independent run with the same error.

    Pairing the problems of two runs makes it smaller, the more their shares agree.
    """
    return None if error is None else DETECTABLE * math.sqrt(2) * error


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased probability that at least one of k answers is right, given c right ones among n samples.

    1 - C(n - c, k) / C(n, k) = 1 - prod_{i = n-c+1..n} (1 - k / i)          arXiv 2107.03374, Eq. 1
    Errors: asserts 0 <= c <= n and 1 <= k <= n.
    """
    assert 0 <= c <= n and 1 <= k <= n
    return 1.0 if n - c < k else 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def mean_pass_at_k(counts_J: Sequence[tuple[int, int]], k: int) -> float | None:
    """Mean pass@k over problems given as (samples, right); None where a problem has fewer than k samples."""
    if any(n < k for n, _ in counts_J):
        return None
    return fmean(pass_at_k(n, c, k) for n, c in counts_J)


def pass_at_k_interval(counts_J: Sequence[tuple[int, int]], k: int) -> tuple[float, float] | None:
    """The 95 % interval of the mean pass@k over problems, given as `mean_pass_at_k`; None for a single problem."""
    values_J = [pass_at_k(n, c, k) for n, c in counts_J]
    return interval(fmean(values_J), clustered_error(values_J), len(values_J))


def powers_up_to(samples: int) -> list[int]:
    """The k at which pass@k is reported: 1, 2, 4, ... and the number of samples."""
    return sorted({2**i for i in range(samples.bit_length()) if 2**i <= samples} | {samples})


@dataclass(frozen=True, slots=True)
class TwoWay:
    """The variance of a mean difference when both seeds and problems are a sample."""

    V_s: float
    V_c: float
    V_sc: float
    V: float
    df: int
    ci: tuple[float, float]
    """95 %: for new seeds and new problems."""


def two_way(d_SJ: Array, cluster_J: Array | None = None) -> TwoWay | None:
    """Two-way cluster-robust interval of the mean of d over seeds and clusters of problems (by default one problem
    each), after Cameron, Gelbach and Miller (2011). With e = d - mean, N seeds, C clusters:

    V_s = N/(N-1) sum_s (sum_j e)^2 / (NJ)^2,  V_c = C/(C-1) sum_c (sum_{j in c} sum_s e)^2 / (NJ)^2,
    V_sc = NC/(NC-1) sum_{s,c} (sum_{j in c} e)^2 / (NJ)^2,  V = max(V_s + V_c - V_sc, V_s, V_c),  df = min(N, C) - 1

    None with a single seed or cluster.
    """
    num_seeds, num_problems = d_SJ.shape
    cluster_J = np.arange(num_problems) if cluster_J is None else np.unique(cluster_J, return_inverse=True)[1]
    num_clusters = int(cluster_J.max()) + 1
    if min(num_seeds, num_clusters) < 2:
        return None
    mean = float(d_SJ.mean())
    e_SC = np.stack([np.bincount(cluster_J, row, num_clusters) for row in d_SJ - mean])

    def variance(sums: Array) -> float:
        return float(sums.size / (sums.size - 1) * (sums**2).sum() / d_SJ.size**2)

    v_s, v_c, v_sc = variance(e_SC.sum(axis=1)), variance(e_SC.sum(axis=0)), variance(e_SC)
    v = max(v_s + v_c - v_sc, v_s, v_c)
    df = min(num_seeds, num_clusters) - 1
    half = t_quantile(df) * v**0.5
    return TwoWay(v_s, v_c, v_sc, v, df, (mean - half, mean + half))


@dataclass(frozen=True, slots=True)
class NoiseSplit:
    """Sources of the variance of the seeds' differences."""

    within: float
    """Sampling of answers; falls with more samples."""
    between: float
    """Everything else that differs from seed to seed; falls only with more seeds."""

    @property
    def share(self) -> float | None:
        """The share between seeds; None without any variance."""
        total = self.within + self.between
        return self.between / total if total > 0 else None

    def sd(self, factor: float) -> float:
        """The expected standard deviation of a seed's difference with `factor` times as many samples."""
        return float(np.sqrt(self.between + self.within / factor))


def noise_split(baseline_SJ: Array, treatment_SJ: Array, k: int) -> NoiseSplit | None:
    """Splits the variance of the seeds' differences of avg@k into sampling of answers and the rest.

    within = mean_s 1/J^2 sum_j [pA(1-pA) + pB(1-pB)] / (k-1), unbiased;  between = max(0, var(D) - within)

    None with one sample per problem or one seed.
    """
    num_seeds, num_problems = baseline_SJ.shape
    if k < 2 or num_seeds < 2:
        return None
    spread_SJ = baseline_SJ * (1 - baseline_SJ) + treatment_SJ * (1 - treatment_SJ)
    within = float((spread_SJ.sum(axis=1) / num_problems**2 / (k - 1)).mean())
    D_S = (treatment_SJ - baseline_SJ).mean(axis=1)
    return NoiseSplit(within, max(0.0, float(np.var(D_S, ddof=1)) - within))


def over_problems(d_J: Array) -> tuple[float, float] | None:
    """95 % t interval over problems of the difference between two checkpoints; None if it has no width.

    It says nothing about the algorithms that trained them.
    """
    if len(d_J) < 2 or float(np.std(d_J, ddof=1)) == 0:
        return None
    mean, n = float(d_J.mean()), len(d_J)
    half = float(t_quantile(n - 1) * np.std(d_J, ddof=1) / np.sqrt(n))
    return mean - half, mean + half
