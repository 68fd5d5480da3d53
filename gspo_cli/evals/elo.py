"""CodeElo's rating of one contest (Quan et al., arXiv 2501.01257): where a participant's score would have stood.

Problems are worth their points less 50 for each failed attempt; without points each counts 1 and a failed attempt costs
10 of penalty. There is no decay with time. The rating is the largest whole number whose expected place among the
participants is no better than the place reached:

    seed(r) = 1 + sum_j 1 / (1 + 10^((r - r_j) / 400))

It saturates: first and second place always give the cap, 99 above the best participant's rating, and the number of
contests at the cap is part of every result. Participants' ratings are those of before the contest.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

MAX_ATTEMPTS = 8
MIN_ROWS = 201
ACCEPTED = "AC"


@dataclass(frozen=True)
class Contest:
    """The local snapshot of one contest."""

    id: str
    name: str
    points: Mapping[str, float | None]
    """By problem index (`A`, `F1`); None where a contest has no points."""
    rows: Sequence[tuple[float, float, int]]
    """(points, penalty, rating before) of the rated official participants, in standing order."""


@dataclass(frozen=True)
class ContestRating:
    """What one contest says."""

    contest: str
    rating: int | None
    """None: the contest was skipped."""
    score: float
    penalty: float
    rank: int
    """Number of participants placed before this score: 0 is first."""
    at_cap: bool
    reason: str = ""


def rate(contest: Contest, attempts: Mapping[str, Sequence[bool]]) -> ContestRating:
    """The rating for one contest; `attempts`: by problem index, whether each attempt was accepted, in order."""
    score, penalty = score_of(contest, attempts)
    rank = rank_of(contest, score, penalty)
    if len(contest.rows) < MIN_ROWS:
        reason = f"{len(contest.rows)} participants, at least {MIN_ROWS} are needed"
        return ContestRating(contest.id, None, score, penalty, rank, False, reason)
    ratings = [row[2] for row in contest.rows]
    rating = rating_at(rank, ratings)
    return ContestRating(contest.id, rating, score, penalty, rank, rating == max(ratings) + 99)


def score_of(contest: Contest, attempts: Mapping[str, Sequence[bool]]) -> tuple[float, float]:
    """(points, penalty) of the first accepted attempt of each problem."""
    score = penalty = 0.0
    for index, tries in attempts.items():
        failed = next((i for i, right in enumerate(tries[:MAX_ATTEMPTS]) if right), None)
        if failed is None:
            continue
        points = contest.points[index]
        if points is None:
            score += 1
            penalty += 10 * failed
        else:
            score += max(0.0, points - 50 * failed)
    return score, penalty


def rank_of(contest: Contest, score: float, penalty: float) -> int:
    """How many participants stand before a score."""
    for rank, (points, lost, _) in enumerate(contest.rows):
        if points < score or (points == score and lost > penalty):
            return rank
    return len(contest.rows)


def rating_at(rank: int, ratings: Sequence[int]) -> int:
    """The rating whose expected place is `rank`, by bisection over whole numbers from 0 to the best plus 100."""
    low, high = 0, max(ratings) + 100
    while high - low > 1:
        middle = (low + high) // 2
        seed = 1 + sum(1 / (1 + 10 ** ((middle - r) / 400)) for r in ratings)
        if seed < rank:
            high = middle
        else:
            low = middle
    return low


@dataclass(frozen=True)
class RatingTable:
    """How many users have which rating."""

    ratings: Sequence[int]
    """Of every user, ascending."""
    source: str

    def percentile(self, rating: float) -> float:
        """Per cent of the users with a lower rating, to one decimal."""
        return round(100 * bisect.bisect_left(self.ratings, rating) / len(self.ratings), 1)


def mean_rating(results: Sequence[ContestRating]) -> dict[str, float | int | None]:
    """The mean over contests, with their number, spread, and how many sit at the cap."""
    rated = [r.rating for r in results if r.rating is not None]
    return {
        "elo": fmean(rated) if rated else None,
        "contests": len(rated),
        "sd": stdev(rated) if len(rated) > 1 else None,
        "at_cap": sum(r.at_cap for r in results),
        "skipped": len(results) - len(rated),
    }
