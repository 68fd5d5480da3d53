"""CodeForces: local problems with checkers, rated against the local standings of their contests.

Programs are Python and run here; the published method (CodeElo, arXiv 2501.01257) submits C++ to the live site. So the
rating follows the same formula and is not like for like with published ones. Two figures are made of the same outcomes
and never mixed: the Elo of contests (`elo.py`) and the problem-rating estimate (`rating_estimate.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import Benchmark, DataChoice, GraderChoice, Outcomes, ProblemSet
from gspo_cli.evals.code_grader import CodeGrader
from gspo_cli.evals.codeforces_rows import GENERATED, Place, check_columns, problem_of
from gspo_cli.evals.elo import Contest, RatingTable, mean_rating, rate
from gspo_cli.evals.elo_files import read_contests, read_ratings
from gspo_cli.evals.lcb_rows import sha256_of
from gspo_cli.evals.livecodebench import excluded_notes, nothing_gradable
from gspo_cli.evals.rating_estimate import estimate_rating
from gspo_cli.evals.rows import SUFFIXES, read_files
from gspo_cli.rewards.code.code_tests import BadTests
from gspo_cli.rewards.code.grading import CHECKED
from gspo_cli.tasks.code_prompt import TEMPLATE
from gspo_cli.types import Problem, Sampling

LANGUAGE = "Python; published ratings are mostly of C++, so a comparison is not like for like"


def load(choice: DataChoice) -> ProblemSet:
    """The problems of local files, with what rates them.

    Errors: GspoError without files, for another schema, or nothing that can be graded.
    """
    if not choice.paths:
        raise GspoError(
            "codeforces without problems",
            "it downloads nothing: a rating needs problems and standings of the same contests",
            "--data codeforces=FILE in the schema of open-r1/codeforces, and --contests codeforces=FILE",
        )
    files = [file for path in choice.paths for file in problem_files(path)]
    generated = {
        p.stem.removeprefix(GENERATED).lstrip("0"): p
        for path in choice.paths if path.is_dir() for p in path.rglob(f"{GENERATED}*.parquet")
    }  # fmt: skip
    contests = read_contests(choice.contests) if choice.contests else {}
    ratings = read_ratings(choice.ratings) if choice.ratings else None
    problems, payload, places, excluded = list[Problem](), {}, dict[str, Place](), dict[str, list[str]]()
    for file in read_files(tuple(files)):
        for number, row in enumerate(file.rows, start=1):
            check_columns(row, f"{file.name}, row {number}")
            identity = str(row["id"])
            if identity in payload:
                raise GspoError(f"two problems with the id {identity}", "answers are kept by id", "remove one row")
            try:
                problem, payload[identity], places[identity] = problem_of(row, generated)
                problems.append(problem)
            except BadTests as error:
                excluded.setdefault(str(error), []).append(identity)
    if not problems:
        raise nothing_gradable("codeforces", excluded)
    source = {
        "source": "local",
        "revision": None,
        "files": {p.name: sha256_of(p) for p in files},
        "contests": sha256_of(choice.contests) if choice.contests and choice.contests.is_file() else None,
        "language": LANGUAGE,
    }
    return ProblemSet(
        tuple(problems), source, payload, excluded, warnings=tuple(excluded_notes("codeforces", excluded)),
        figures=partial(figures, places, contests, ratings),
    )  # fmt: skip


def problem_files(path: Path) -> list[Path]:
    """A file, or those of a folder that hold problems."""
    if not path.is_dir():
        return [path]
    found = [p for p in sorted(path.rglob("*")) if p.suffix in SUFFIXES and not p.name.startswith(GENERATED)]
    return found or [path]


def figures(
    places: Mapping[str, Place], contests: Mapping[str, Contest], ratings: RatingTable | None, outcomes: Outcomes
) -> dict[str, Any]:
    """The Elo of the contests, and the problem-rating estimate; each None where its data are missing."""
    rated = [(places[i].rating, fmean(right)) for i, right in outcomes.items() if places[i].rating is not None]
    estimate = asdict(estimate_rating([(float(r or 0), share) for r, share in rated])) if rated else None
    return {
        "problem_rating_estimate": estimate,
        "contest_elo": contest_elo(places, contests, ratings, outcomes) if contests else None,
    }


def contest_elo(
    places: Mapping[str, Place], contests: Mapping[str, Contest], ratings: RatingTable | None, outcomes: Outcomes
) -> dict[str, Any]:
    """CodeElo's rating over the contests of which there are problems. A problem of such a contest that is not among
    them counts as unsolved, and is named."""
    attempts: dict[str, dict[str, list[bool]]] = {}
    for identity, right in outcomes.items():
        place = places[identity]
        if place.contest in contests and place.index in contests[place.contest].points:
            attempts.setdefault(place.contest, {})[place.index] = list(right)
    results = [rate(contests[key], tries) for key, tries in attempts.items()]
    mean = mean_rating(results)
    return {
        **mean,
        "percentile": ratings.percentile(mean["elo"]) if ratings and mean["elo"] is not None else None,
        "percentile_table": ratings.source if ratings else None,
        "language": LANGUAGE,
        "by_contest": [asdict(result) for result in results],
        "not_attempted": {
            key: missing for key, tries in attempts.items() if (missing := sorted(contests[key].points.keys() - tries))
        },
        "contests_without_problems": sorted(contests.keys() - attempts.keys()),
    }


def grader(problems: ProblemSet, choice: GraderChoice) -> CodeGrader:
    """Its own way to judge, whatever `--grader` says of the other benchmarks."""
    return CodeGrader(problems, replace(choice, graders=(CHECKED,)))


CODEFORCES = Benchmark(
    name="codeforces",
    description="local problems with checkers; Elo from local standings",
    load=load,
    grader=grader,
    samples=8,
    sampling=Sampling(temperature=0.6, top_p=0.95, max_new_tokens=32768),
    prompt_template="code-1",
    prompt_text=TEMPLATE,
    runs_programs=True,
    takes=("contests", "ratings"),
    hub="local",
)
