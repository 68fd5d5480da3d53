"""Statistics of a benchmark's problems and samples, below the level of runs.

S = seeds, J = problems, I = samples of an answer (k of them); p_SJ = a run's share of right answers to a problem;
d_SJ = treatment minus baseline
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class TwoWay:
    """The variance of a mean difference when seeds and problems are both drawn from more of their kind."""

    v_s: float
    v_c: float
    v_sc: float
    v: float
    df: int
    ci: tuple[float, float]
    """95 %: for new seeds and new problems."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Where the variance of the seeds' differences comes from."""

    within: float
    """Sampling of answers; falls with k."""
    between: float
    """Everything else that differs from seed to seed; falls with seeds alone."""

    @property
    def share(self) -> float | None:
        """The share between seeds; None without any variance."""
        total = self.within + self.between
        return self.between / total if total > 0 else None

    def sd(self, factor: float) -> float:
        """The standard deviation to expect of a seed's difference with `factor` times as many samples."""
        return float(np.sqrt(self.between + self.within / factor))


def two_way(d_SJ: Array, cluster_J: Array | None = None) -> TwoWay | None:
    """Two-way cluster-robust interval of the mean of d over seeds and clusters of problems (a problem each, if not
    given), after Cameron, Gelbach and Miller (2011). With e = d - mean, N seeds, C clusters:

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
    half = float(stats.t.ppf(0.975, df)) * v**0.5
    return TwoWay(v_s, v_c, v_sc, v, df, (mean - half, mean + half))


def noise_split(baseline_SJ: Array, treatment_SJ: Array, k: int) -> Noise | None:
    """Splits the variance of the seeds' differences of avg@k into sampling of answers and the rest.

    within = mean_s 1/J^2 sum_j [pA(1-pA) + pB(1-pB)] / (k-1), unbiased;  between = max(0, var(D) - within)

    None with one sample a problem or one seed.
    """
    num_seeds, num_problems = baseline_SJ.shape
    if k < 2 or num_seeds < 2:
        return None
    spread_SJ = baseline_SJ * (1 - baseline_SJ) + treatment_SJ * (1 - treatment_SJ)
    within = float((spread_SJ.sum(axis=1) / num_problems**2 / (k - 1)).mean())
    D_S = (treatment_SJ - baseline_SJ).mean(axis=1)
    return Noise(within, max(0.0, float(np.var(D_S, ddof=1)) - within))


def over_problems(d_J: Array) -> tuple[float, float] | None:
    """95 % t interval over problems of the difference between two checkpoints; None if it has no width.

    It says nothing about the algorithms that made them.
    """
    if len(d_J) < 2 or float(np.std(d_J, ddof=1)) == 0:
        return None
    mean, n = float(d_J.mean()), len(d_J)
    half = float(stats.t.ppf(0.975, n - 1) * np.std(d_J, ddof=1) / np.sqrt(n))
    return mean - half, mean + half


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased probability that one of k answers is right, from c right ones among n (arXiv 2107.03374, Eq. 1).

    1 - prod_{i = n-c+1..n} (1 - k/i);  1 if n - c < k

    Errors: asserts 0 <= c <= n and 1 <= k <= n.
    """
    assert 0 <= c <= n and 1 <= k <= n
    return 1.0 if n - c < k else float(1 - np.prod(1 - k / np.arange(n - c + 1, n + 1)))
