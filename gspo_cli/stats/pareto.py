"""Pareto k-hat: how heavy the tail of importance weights is, and so whether their mean can be trusted at all."""

from math import ceil, sqrt

import numpy as np
from scipy.special import softmax

from gspo_cli.stats.problems import Array

FEWEST = 25
"""Weights below which no tail is fitted (five in the tail)."""
SATURATION = 20.0
"""Log-ratios beyond count as this, as in the losses."""
PRIOR_WEIGHT, PRIOR_SHAPE = 10, 0.5
"""A weak prior that steadies small tails (arXiv 1507.02646, appendix C)."""


LONGEST = 1024
"""Weights in the tail at most: what has to be kept of a stream of them is bounded."""
ROUNDING = 1e-5
"""Nats: log-ratios whose tail spans less differ by no more than float32 log-probabilities are uncertain."""


def pareto_k_of_largest(log_ratios: Array, num: int) -> float | None:
    """`pareto_k` of `num` importance ratios, from the logarithms of the largest `LONGEST + 1` of them or more.

    None also where they have no tail: all equal, or equal but for rounding, as before the first update.
    """
    ordered = np.sort(np.asarray(log_ratios, dtype=np.float64))
    tail = _tail_length(num)
    if num < FEWEST or ordered[-1] - ordered[-tail - 1] < ROUNDING:
        return None
    found = _tail_shape(np.exp(np.clip(ordered, -SATURATION, SATURATION)), tail)
    return found if np.isfinite(found) else None


def _tail_length(num: int) -> int:
    return min(num // 5, ceil(3 * sqrt(num)), LONGEST)


def pareto_k(weights: Array) -> float | None:
    """The shape of a generalised Pareto distribution fitted to the min(n / 5, 3 sqrt(n), 1024) largest weights.

    Below 0.5 the weights have a finite variance; above 0.7 their mean is not to be trusted, however many there are; at
    1 and above it does not exist. None for fewer than `FEWEST` weights; -inf where the largest are all equal: no tail.
    Paper: Vehtari, Simpson, Gelman, Yao and Gabry, arXiv 1507.02646, §2.4 and §3.
    """
    if len(weights) < FEWEST:
        return None
    return _tail_shape(np.sort(np.asarray(weights, dtype=np.float64)), _tail_length(len(weights)))


def _tail_shape(ordered: Array, tail: int) -> float:
    """k of the `tail` largest of ascending weights; -inf where they are all equal."""
    exceedances = ordered[-tail:] - ordered[-tail - 1]
    exceedances = exceedances[exceedances > 1e-12 * max(abs(ordered[-1]), 1.0)]
    return float("-inf") if len(exceedances) < 2 else shape(exceedances)


def shape(exceedances: Array) -> float:
    """k of a generalised Pareto distribution with location 0, for ascending positive numbers; positive = heavy tail.

    Paper: Zhang and Stephens, Technometrics 51:316 (2009), with the prior above.
    """
    num = len(exceedances)
    grid = np.arange(1, 30 + int(sqrt(num)) + 1)
    quartile = exceedances[max(int(num / 4 + 0.5) - 1, 0)]
    theta = (1 - np.sqrt(len(grid) / (grid - 0.5))) / (3 * quartile) + 1 / exceedances[-1]
    shapes = np.log1p(-theta[:, None] * exceedances).mean(axis=1)
    mean = float(theta @ softmax(num * (np.log(-theta / shapes) - shapes - 1)))
    fitted = float(np.log1p(-mean * exceedances).mean())
    return (num * fitted + PRIOR_WEIGHT * PRIOR_SHAPE) / (num + PRIOR_WEIGHT)
