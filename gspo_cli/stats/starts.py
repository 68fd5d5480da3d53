"""How much of an outcome's variance comes from the start model: seeds nested in starts. S = seeds."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from gspo_cli.stats.problems import Array


@dataclass(frozen=True, slots=True)
class StartShare:
    """The start model's share of the variance (an intraclass correlation)."""

    starts: int
    seeds: int
    share: float
    """Between 0 and 1; an estimate below 0 counts as 0."""
    ci: tuple[float, float]
    """95 %, from the F distribution; exact for normal values and equally many seeds of each start."""
    sd_starts: float
    """Standard deviation between start models, in the unit of the values."""
    sd_seeds: float
    """Between seeds of one start model."""


def start_share(x_S: Array, starts_S: Sequence[Hashable]) -> StartShare | None:
    """One-way analysis of variance with random starts: x = start + seed.

    share = (B - W) / (B + (n - 1) W) with B, W the mean squares between and within starts, and n the seeds of a start
    (its usual mean where the numbers differ). None with fewer than two starts, without a start that two seeds share, or
    where no value differs.
    """
    x_S = np.asarray(x_S, dtype=np.float64)
    groups = [x_S[[s == start for s in starts_S]] for start in dict.fromkeys(starts_S)]
    k, total = len(groups), len(x_S)
    if k < 2 or total == k or float(np.ptp(x_S)) == 0:
        return None
    sizes = np.array([len(group) for group in groups])
    n = float((total - (sizes**2).sum() / total) / (k - 1))
    between = sum(len(g) * float(g.mean() - x_S.mean()) ** 2 for g in groups) / (k - 1)
    within = sum(float(((g - g.mean()) ** 2).sum()) for g in groups) / (total - k)
    if within == 0:
        return StartShare(k, total, 1.0, (1.0, 1.0), between**0.5 / n**0.5, 0.0)
    ratio, df = between / within, (k - 1, total - k)
    low, high = (_share(ratio / float(stats.f.ppf(level, *df)), n) for level in (0.975, 0.025))
    return StartShare(k, total, _share(ratio, n), (low, high), max(0.0, (between - within) / n) ** 0.5, within**0.5)


def _share(ratio: float, n: float) -> float:
    return min(1.0, max(0.0, (ratio - 1) / (ratio + n - 1)))
