"""The problem-rating estimate: the ability that explains which rated problems were solved. Not a contest Elo.

    P(solve d) = 1 / (1 + 10^((d - theta) / 400)),   theta ~ N(1500, 500^2)

theta maximises the posterior; its standard error is 1 / sqrt(I) with
I = (ln 10 / 400)^2 sum_j P_j (1 - P_j) + 1 / 500^2, one term for a problem whatever the number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

PRIOR_MEAN, PRIOR_SD = 1500.0, 500.0
SLOPE = math.log(10) / 400


@dataclass(frozen=True)
class RatingEstimate:
    """An ability on the scale of problem ratings."""

    problem_rating: float
    standard_error: float
    problems: int
    all_solved: bool
    """Then the data only bound it from below, and the prior decides."""
    none_solved: bool


def estimate_rating(outcomes: Sequence[tuple[float, float]]) -> RatingEstimate:
    """From (problem rating, share of samples that solved it). No outcomes: the prior."""

    def slope(theta: float) -> float:
        gain = sum(share - solve_probability(theta, rating) for rating, share in outcomes)
        return SLOPE * gain - (theta - PRIOR_MEAN) / PRIOR_SD**2

    low, high = -20_000.0, 20_000.0  # the slope falls throughout, so halving is certain to find its zero
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    chances = [solve_probability(low, rating) for rating, _ in outcomes]
    information = SLOPE**2 * sum(p * (1 - p) for p in chances) + 1 / PRIOR_SD**2
    shares = [share for _, share in outcomes]
    return RatingEstimate(
        problem_rating=low,
        standard_error=1 / math.sqrt(information),
        problems=len(outcomes),
        all_solved=bool(shares) and min(shares) == 1,
        none_solved=bool(shares) and max(shares) == 0,
    )


def solve_probability(theta: float, rating: float) -> float:
    """The chance of solving a problem of that rating."""
    return 1 / (1 + 10 ** min((rating - theta) / 400, 300.0))
