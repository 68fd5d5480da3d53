"""What a clip range discards, given the spread of the log-ratios that it meets; and the range for a wanted share."""

from __future__ import annotations

from math import expm1, log1p, sqrt

from scipy.stats import norm

TOO_MUCH, NOTHING = 1 / 3, 1e-3
"""Shares at which a range is said to discard too much, or nothing."""
PAPER_RANGE, PAPER_LENGTH = 3e-4, 10_000
"""GSPO's published lower range, and the order of its response lengths (arXiv 2509.09177 takes 10,000 tokens)."""


def share_discarded(low: float, high: float, log_std: float) -> float:
    """Q(|log(1 - low)| / sd) / 2 + Q(log(1 + high) / sd) / 2, Q = the normal upper tail: half the advantages are
    positive, and only the side that acts on them counts. Never above one half."""
    if log_std <= 0:
        return 0.0
    return float(norm.sf(-log1p(-low) / log_std) + norm.sf(log1p(high) / log_std)) / 2


def range_for(share: float, log_std: float) -> tuple[float, float]:
    """The range (low, high) that discards a share below one half, as far from 1 on both sides in log space: z standard
    deviations, z = the normal quantile."""
    assert 0 < share < 0.5
    edge = log_std * float(norm.isf(share))
    return -expm1(-edge), expm1(edge)


def scaled_range(length: float) -> float:
    """GSPO's published lower range at another length: 3e-4 sqrt(10,000 / L)  (arXiv 2509.09177)."""
    return PAPER_RANGE * sqrt(PAPER_LENGTH / length)
