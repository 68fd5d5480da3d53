"""CodeElo's rating (arXiv 2501.01257) of a model's submissions, and the files of contests that it is computed from."""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated

from pydantic import BaseModel, Field, FiniteFloat, Strict, TypeAdapter, ValidationError

from gspo_cli.errors import GspoError, first_fault
from gspo_cli.rows import read_json

MAX_ATTEMPTS = 8
MIN_PARTICIPANTS = 201


@dataclass(frozen=True)
class Contest:
    """The local snapshot of one contest."""

    id: str
    points: Mapping[str, float | None]
    """By problem index (`A`, `F1`); None if the contest has no points."""
    rows: Sequence[tuple[float, float, int]]
    """(points, penalty, rating before) of the rated official participants, in standing order."""


@dataclass(frozen=True)
class ContestRating:
    """The result of one contest."""

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
    if len(contest.rows) < MIN_PARTICIPANTS:
        reason = f"{len(contest.rows)} participants, at least {MIN_PARTICIPANTS} are needed"
        return ContestRating(contest.id, None, score, penalty, rank, False, reason)
    ratings = [rating for _, _, rating in contest.rows]
    rating = rating_at(rank, ratings)
    return ContestRating(contest.id, rating, score, penalty, rank, rating == max(ratings) + 99)


def score_of(contest: Contest, attempts: Mapping[str, Sequence[bool]]) -> tuple[float, float]:
    """(points, penalty) of the first accepted attempt at each problem.

    Each failed attempt before it costs 50 points, or a penalty of 10 in a contest without points.
    """
    score = penalty = 0.0
    for index, accepted in attempts.items():
        num_failed = next((i for i, right in enumerate(accepted[:MAX_ATTEMPTS]) if right), None)
        if num_failed is None:
            continue
        points = contest.points[index]
        if points is None:
            score += 1
            penalty += 10 * num_failed
        else:
            score += max(0.0, points - 50 * num_failed)
    return score, penalty


def rank_of(contest: Contest, score: float, penalty: float) -> int:
    """The number of participants placed before a score."""
    return next((i for i, (p, q, _) in enumerate(contest.rows) if (-p, q) > (-score, penalty)), len(contest.rows))


def rating_at(rank: int, ratings: Sequence[int]) -> int:
    """The rating whose expected place is `rank`, by bisection over whole numbers from 0 to the best plus 100."""

    def better_than_expected(rating: int) -> bool:
        return 1 + sum(1 / (1 + 10 ** ((rating - r) / 400)) for r in ratings) < rank

    return bisect.bisect_left(range(1, max(ratings) + 100), True, key=better_than_expected)


def mean_rating(results: Sequence[ContestRating]) -> dict[str, float | int | None]:
    """The mean over contests, with their number, spread, and how many are at the cap."""
    ratings = [r.rating for r in results if r.rating is not None]
    return {
        "elo": fmean(ratings) if ratings else None,
        "contests": len(ratings),
        "sd": stdev(ratings) if len(ratings) > 1 else None,
        "at_cap": sum(r.at_cap for r in results),
        "skipped": len(results) - len(ratings),
    }


@dataclass(frozen=True)
class RatingTable:
    """How many users have which rating."""

    ratings: Sequence[int]
    """Of every user, ascending."""
    source: str

    def percentile(self, rating: float) -> float:
        """Percentage of users with a lower rating, to one decimal."""
        return round(100 * bisect.bisect_left(self.ratings, rating) / len(self.ratings), 1)


PRIOR_MEAN, PRIOR_SD = 1500.0, 500.0
SLOPE = math.log(10) / 400


@dataclass(frozen=True)
class RatingEstimate:
    """An ability on the scale of problem ratings."""

    problem_rating: float
    standard_error: float
    problems: int
    all_solved: bool
    """The data then give only a lower bound, and the prior decides."""
    none_solved: bool


def estimate_rating(outcomes: Sequence[tuple[float, float]]) -> RatingEstimate:
    """The most probable ability given (problem rating, share of samples that solved it); without outcomes the prior."""

    def slope(theta: float) -> float:
        gain = sum(share - solve_probability(theta, rating) for rating, share in outcomes)
        return SLOPE * gain - (theta - PRIOR_MEAN) / PRIOR_SD**2

    low, high = -20_000.0, 20_000.0  # the slope falls throughout, so bisection is certain to find its zero
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    probabilities = [solve_probability(low, rating) for rating, _ in outcomes]
    information = SLOPE**2 * sum(p * (1 - p) for p in probabilities) + 1 / PRIOR_SD**2
    shares = [share for _, share in outcomes]
    return RatingEstimate(
        problem_rating=low,
        standard_error=1 / math.sqrt(information),
        problems=len(outcomes),
        all_solved=bool(shares) and min(shares) == 1,
        none_solved=bool(shares) and max(shares) == 0,
    )


def solve_probability(theta: float, rating: float) -> float:
    """The probability of solving a problem of that rating."""
    return 1 / (1 + 10 ** min((rating - theta) / 400, 300.0))


ACCEPTED = ("AC", "OK", "ACCEPTED")
"""As CodeElo, the site and LiveCodeBench write it; upper or lower case."""
CONTEST_FORM = '{id: {"name": .., "problems": [{"index", "points"}], "rows": [[points, penalty, rating before], ..]}}'
SUBMISSION_FORM = '[{"contest": 1350, "problem_status": {"1350A": ["WA", "AC"]}}, ..]'


class ContestProblem(BaseModel):
    index: str
    points: FiniteFloat | None


class Snapshot(BaseModel):
    """A contest as `CONTEST_FORM` spells it."""

    name: str
    problems: Annotated[list[ContestProblem], Field(min_length=1)]
    rows: Annotated[list[tuple[FiniteFloat, FiniteFloat, int]], Field(min_length=1)]


SNAPSHOTS = TypeAdapter(dict[str, Snapshot])


class Entry(BaseModel):
    """A participation as `SUBMISSION_FORM` spells it."""

    contest: int | str
    problem_status: dict[str, list[str]]


ENTRIES = TypeAdapter(Annotated[list[Entry], Field(min_length=1)])


def contest_files(path: Path) -> list[Path]:
    """The file itself, or every json file of a folder."""
    return sorted(path.glob("*.json")) if path.is_dir() else [path]


def read_contests(path: Path) -> dict[str, Contest]:
    """The snapshots of a file or of every json file of a folder; plain, or under `contests`.

    Errors: GspoError for another form, or a contest or problem that is there twice.
    """
    contests: dict[str, Contest] = {}
    for file in contest_files(path):
        content = read_json(file)
        plain = content.get("contests", content) if isinstance(content, dict) else content
        try:
            table = SNAPSHOTS.validate_python(plain)
        except ValidationError as error:
            raise GspoError(f"{file} holds no contests", first_fault(error), f"the form is {CONTEST_FORM}") from error
        for key, found in table.items():
            points = {problem.index: problem.points for problem in found.problems}
            if key in contests or len(points) < len(found.problems):
                what = f"contest {key}" if key in contests else f"a problem of contest {key}"
                raise GspoError(f"{file}: {what} is there twice", "one would replace the other", "remove one")
            contests[key] = Contest(key, points, sorted(found.rows, key=lambda row: (-row[0], row[1])))
    if not contests:
        raise GspoError(f"no contests in {path}", "it is empty", f"the form is {CONTEST_FORM}")
    return contests


@dataclass(frozen=True)
class Submission:
    """The attempts of one participation."""

    contest: Contest
    label: int | str
    """The contest's id as the file spells it."""
    attempts: dict[str, list[bool]]
    """By problem index, whether each attempt was accepted, in order."""


def read_submissions(path: Path, contests: Mapping[str, Contest]) -> list[Submission]:
    """The entries of a list, plain or under `cases`. Errors: GspoError."""
    content = read_json(path)
    try:
        entries = ENTRIES.validate_python(content.get("cases") if isinstance(content, dict) else content)
    except ValidationError as error:
        hint = f"the form is {SUBMISSION_FORM}, plain or under `cases`"
        raise GspoError(f"{path} holds no submissions", first_fault(error), hint) from error
    submissions = []
    for number, entry in enumerate(entries):
        key = str(entry.contest)
        if key not in contests:
            raise GspoError(
                f"entry {number} of {path} names contest {key}",
                f"the contests file has {', '.join(contests)}",
                "give its snapshot with --contests",
            )
        submissions.append(Submission(contests[key], entry.contest, _attempts(contests[key], entry.problem_status)))
    return submissions


def _attempts(contest: Contest, status: Mapping[str, Sequence[str]]) -> dict[str, list[bool]]:
    """Attempts by problem index, from `{"1350A": ["WA", "AC"]}` (or `{"A": [..]}`).

    Errors: GspoError for a problem that the contest does not have, or that is named twice.
    """
    attempts: dict[str, list[bool]] = {}
    for key, verdicts in status.items():
        index = key.removeprefix(contest.id) if key.removeprefix(contest.id) in contest.points else key
        if index not in contest.points:
            raise GspoError(
                f"contest {contest.id} has no problem {key!r}",
                f"it has {', '.join(contest.id + i for i in contest.points)}",
                "check the submissions",
            )
        if index in attempts:
            why = f"{key!r} is problem {index} of contest {contest.id}, which was named before"
            raise GspoError(f"two lists of attempts at problem {index}", why, "join them in their order")
        attempts[index] = [verdict.upper() in ACCEPTED for verdict in verdicts]
    return attempts


NUM_USERS = TypeAdapter(Annotated[int, Strict(), Field(ge=0)])
MAX_USERS = 50_000_000
"""In a rating table; CodeForces has two million."""


def read_ratings(path: Path) -> RatingTable:
    """A rating table: `{rating: users}` (plain or under `ratings`), or a list of users' ratings. Errors: GspoError."""
    content = read_json(path)
    table = content.get("ratings", content) if isinstance(content, dict) else content
    try:
        pairs = table.items() if isinstance(table, dict) else [(rating, 1) for rating in table]
        counts = sorted((int(rating), NUM_USERS.validate_python(users)) for rating, users in pairs)
        if sum(users for _, users in counts) > MAX_USERS:
            raise ValueError(f"it has more than {MAX_USERS:,} users")
        ratings = [rating for rating, users in counts for _ in range(users)]
        if not ratings:
            raise ValueError("it is empty")
    except (TypeError, ValueError, OverflowError) as error:
        raise GspoError(f"{path} is not a rating table", str(error), "the form is {rating: number of users}") from error
    return RatingTable(ratings, str(content.get("source", path.name)) if isinstance(content, dict) else path.name)
