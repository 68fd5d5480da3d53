"""avg@k with its clustered error, and unbiased pass@k, as pure functions.

J = problems
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

DETECTABLE = 2.8
"""Standard errors of a difference that a two-sided 5 % test finds in 80 % of cases (1.96 + 0.84)."""


def clustered_error(shares_J: Sequence[float]) -> float | None:
    """sqrt(sum (p_j - mean)^2 / (J (J - 1))) of the problems' shares of right answers; None for one problem.

    Answers to one problem are not independent, so the number of problems counts and not that of answers.
    """
    return stdev(shares_J) / math.sqrt(len(shares_J)) if len(shares_J) > 1 else None


def interval(mean: float, error: float | None, num_problems: int) -> tuple[float, float] | None:
    """The 95 % t interval (J - 1 degrees of freedom) of a mean with a clustered error."""
    from scipy.special import stdtrit

    if error is None:
        return None
    half = float(stdtrit(num_problems - 1, 0.975)) * error
    return mean - half, mean + half


def detectable(error: float | None) -> float | None:
    """The smallest difference to a second, independent run with the same error that would be found.

    Pairing the problems of two runs makes it smaller by as much as their shares agree.
    """
    return None if error is None else DETECTABLE * math.sqrt(2) * error


def pass_at_k(num_right: int, num_samples: int, k: int) -> float:
    """The chance that k of the n samples, drawn without replacement, hold a right one.

    1 - C(n - c, k) / C(n, k) = 1 - prod_{j = n-c+1..n} (1 - k / j)          arXiv 2107.03374, Eq. 1
    Errors: asserts 1 <= k <= n.
    """
    assert 1 <= k <= num_samples
    if num_samples - num_right < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / j for j in range(num_samples - num_right + 1, num_samples + 1))


def mean_pass_at_k(counts_J: Sequence[tuple[int, int]], k: int) -> float | None:
    """Mean over the problems of pass@k; each is (right, samples). None where a problem has fewer than k samples."""
    if any(num_samples < k for _, num_samples in counts_J):
        return None
    return fmean(pass_at_k(num_right, num_samples, k) for num_right, num_samples in counts_J)


def powers_up_to(samples: int) -> list[int]:
    """The k for which pass@k is given: 1, 2, 4, ... and the number of samples."""
    return sorted({2**i for i in range(samples.bit_length()) if 2**i <= samples} | {samples})
