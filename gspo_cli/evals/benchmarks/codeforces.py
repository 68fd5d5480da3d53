"""CodeForces: local problems with checkers, rated against the local standings of their contests.

Programs are Python and run here; the published method (CodeElo, arXiv 2501.01257) submits C++ to the live site. The
rating uses the same formula but is not like for like with published ones. Two figures are computed from the same
outcomes and never mixed: the Elo of contests and the problem-rating estimate (both in `elo.py`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, Strict, ValidationError

from gspo_cli.errors import GspoError, first_fault
from gspo_cli.evals.benchmark import DataChoice, GraderChoice, Outcomes, ProblemSet
from gspo_cli.evals.benchmarks.elo import (
    Contest,
    RatingTable,
    contest_files,
    estimate_rating,
    mean_rating,
    rate,
    read_contests,
    read_ratings,
)
from gspo_cli.evals.benchmarks.shared_code import CodeGrader, GradableProblems, code_benchmark
from gspo_cli.evals.data import hashes
from gspo_cli.rewards.code.code_tests import BadTests
from gspo_cli.rewards.code.grading import CHECKED, SharedTests
from gspo_cli.rewards.code.script import CheckedTests
from gspo_cli.rows import Row, data_files, read_rows, require_columns, require_text
from gspo_cli.runlog.checksums import sha256_of
from gspo_cli.runlog.fs import require_regular
from gspo_cli.tasks.code import code_prompt
from gspo_cli.types import Problem

NEEDED = ("id", "contest_id", "index", "description", "official_tests")
GENERATED = "test_cases_"
HINT = "give rows in the schema of open-r1/codeforces"
DEFAULT_LIMIT_S, MAX_LIMIT_S = 2.0, 600.0
LANGUAGE = "Python; published ratings are mostly of C++, so a comparison is not like for like"


@dataclass(frozen=True)
class ContestPlace:
    """A problem's place in its contest."""

    contest: str
    index: str
    rating: float | None


def load(choice: DataChoice) -> ProblemSet:
    """The problems of local files, with the standings that rate them.

    Errors: GspoError without files, for another schema, or if nothing can be graded.
    """
    if not choice.paths:
        raise GspoError(
            "codeforces without problems",
            "it downloads nothing: a rating needs problems and standings of the same contests",
            "--data codeforces=FILE in the schema of open-r1/codeforces, and --contests codeforces=FILE",
        )
    files = [p for path in choice.paths for p in data_files(path) if not p.name.startswith(GENERATED)]
    generated = {
        p.stem.removeprefix(GENERATED).lstrip("0"): p
        for path in choice.paths if path.is_dir() for p in path.rglob(f"{GENERATED}*.parquet")
    }  # fmt: skip
    used = list(files)
    contests = read_contests(choice.contests) if choice.contests else {}
    ratings = read_ratings(choice.ratings) if choice.ratings else None
    places: dict[str, ContestPlace] = {}
    taken: dict[tuple[str, str], str] = {}

    def build(row: Row) -> tuple[Problem, SharedTests]:
        more = generated.get(str(row["contest_id"]))
        problem, tests = _build_problem(row, more)
        used.extend([more] if more and more not in used else [])
        place = str(row["contest_id"]), row["index"]
        if place in taken:
            what = f"two problems {row['index']} of contest {row['contest_id']}: {taken[place]} and {problem.id}"
            raise GspoError(what, "one would replace the other in the contest's rating", "remove one row")
        taken[place] = problem.id
        places[problem.id] = ContestPlace(*place, row["rating"])
        return problem, tests

    gradable = GradableProblems("codeforces", _checked_rows(files), "id", build)
    source = {
        "source": "local",
        "revision": None,
        "files": hashes(used),
        "contests": hashes(contest_files(choice.contests)) if choice.contests else None,
        "ratings": sha256_of(choice.ratings) if choice.ratings else None,
        "language": LANGUAGE,
    }
    return ProblemSet(
        gradable.problems, source, gradable.tests, gradable.excluded, warnings=tuple(gradable.warnings),
        figures=partial(_figures, places, contests, ratings),
    )  # fmt: skip


class Example(BaseModel):
    input: str
    output: str


class Columns(BaseModel):
    """The columns that are read, but for the tests; most may be missing."""

    contest_id: Annotated[int, Strict()] | str
    index: str
    description: str
    title: str | None = None
    input_format: str | None = None
    output_format: str | None = None
    note: str | None = None
    rating: Annotated[FiniteFloat, Strict()] | None = None
    time_limit: Annotated[FiniteFloat, Strict(), Field(gt=0, le=MAX_LIMIT_S)] | None = None
    examples: list[Example] | None = None
    official_tests_complete: Annotated[bool, Strict()] | None = None
    generated_checker: str | None = None


def _checked_rows(files: Sequence[Path]) -> Iterator[Row]:
    for file in files:
        for where, row in read_rows(file):
            require_columns(where, row, NEEDED, HINT)
            require_text(where, "id", str(row["id"]))
            try:
                row |= Columns.model_validate(row).model_dump()
            except ValidationError as error:
                raise GspoError(f"{where} is no problem of codeforces", first_fault(error), HINT) from error
            require_text(where, "statement", _question(row))
            yield row


def _build_problem(row: Row, generated: Path | None) -> tuple[Problem, SharedTests]:
    """A row as a problem with its tests. Errors: BadTests when it cannot be graded."""
    if str(row.get("input_mode") or "stdio") != "stdio":
        raise BadTests("it reads a file, not stdin")
    if row.get("interaction_format"):
        raise BadTests("interactive")
    tests = SharedTests(partial(_read_tests, row, generated))
    tests.check()
    return Problem(str(row["id"]), code_prompt(_question(row), ""), ""), tests


def _question(row: Row) -> str:
    """The statement in the order of the site."""
    titles = {"title": "", "description": "", "input_format": "Input\n", "output_format": "Output\n", "note": "Note\n"}
    *parts, note = (f"{title}{str(row[key]).strip()}" if row.get(key) else "" for key, title in titles.items())
    for example in row.get("examples") or []:
        parts.append(f"Example input\n{example['input'].strip()}\n\nExample output\n{example['output'].strip()}")
    return "\n\n".join(part for part in (*parts, note) if part)


def _read_tests(row: Row, generated: Path | None) -> CheckedTests:
    """Official tests, then generated ones. Errors: BadTests."""
    cases = row["official_tests"]
    try:
        cases = json.loads(cases) if isinstance(cases, str) else list(cases)
        more = _generated_cases(generated, str(row["id"])) if generated else []
        if row.get("official_tests_complete") is False and not more:
            raise BadTests("its official tests are cut off, and there are no generated ones")
        inputs, outputs = ([case[k] for case in (*cases, *more)] for k in ("input", "output"))
        if not all(isinstance(text, str | int | float) and not isinstance(text, bool) for text in (*inputs, *outputs)):
            raise BadTests("an input or output is no text")
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise BadTests(f"the tests cannot be read: {type(error).__name__}") from error
    limit_s = row["time_limit"] or DEFAULT_LIMIT_S
    return CheckedTests(
        tuple(map(str, inputs)), tuple(map(str, outputs)), checker=row["generated_checker"] or None, limit_s=limit_s
    )


def _generated_cases(path: Path, problem: str) -> list[dict[str, str]]:
    """The generated tests of one problem. Errors: BadTests for a file that cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        require_regular(path)
        table = pq.read_table(path, columns=["problem_id", "input", "output"], filters=[("problem_id", "=", problem)])
    except (pa.ArrowException, OSError) as error:
        raise BadTests(f"{path.name} cannot be read") from error
    return table.to_pylist()  # type: ignore[no-any-return]


def _figures(
    places: Mapping[str, ContestPlace], contests: Mapping[str, Contest], ratings: RatingTable | None, outcomes: Outcomes
) -> dict[str, Any]:
    """The Elo of the contests and the problem-rating estimate; each None if its data are missing."""
    rated = [(rating, fmean(right)) for i, right in outcomes.items() if (rating := places[i].rating) is not None]
    return {
        "problem_rating_estimate": asdict(estimate_rating(rated)) if rated else None,
        "contest_elo": _contest_elo(places, contests, ratings, outcomes) if contests else None,
    }


def _contest_elo(
    places: Mapping[str, ContestPlace], contests: Mapping[str, Contest], ratings: RatingTable | None, outcomes: Outcomes
) -> dict[str, Any]:
    """CodeElo's rating over the contests whose problems are in the data. Their other problems count as unsolved, and
    are named."""
    attempts: dict[str, dict[str, list[bool]]] = {}
    for identity, right in outcomes.items():
        place = places[identity]
        if place.contest in contests and place.index in contests[place.contest].points:
            attempts.setdefault(place.contest, {})[place.index] = list(right)
    results = [rate(contests[key], accepted) for key, accepted in attempts.items()]
    mean = mean_rating(results)
    not_attempted = {key: sorted(contests[key].points.keys() - accepted) for key, accepted in attempts.items()}
    return {
        **mean,
        "percentile": ratings.percentile(mean["elo"]) if ratings and mean["elo"] is not None else None,
        "percentile_table": ratings.source if ratings else None,
        "language": LANGUAGE,
        "by_contest": [asdict(result) for result in results],
        "not_attempted": {key: missing for key, missing in not_attempted.items() if missing},
        "contests_without_problems": sorted(contests.keys() - attempts.keys()),
        "problems_without_contest": sorted(
            i for i in outcomes if places[i].index not in attempts.get(places[i].contest, ())
        ),
    }


def grader(problems: ProblemSet, choice: GraderChoice) -> CodeGrader:
    """Always the `checked` grader, whatever `--grader` names for other benchmarks."""
    return CodeGrader(problems, replace(choice, graders=(CHECKED,)))


CODEFORCES = code_benchmark(
    name="codeforces",
    description="local problems with checkers; Elo from local standings",
    load=load,
    grader=grader,
    hub="local",
    takes=("contests", "ratings"),
)
