"""Rows of open-r1/codeforces: problems with tests, checkers and ratings. Tests of the larger kind lie in files of their
own, `test_cases_<contest>.parquet`, and are read when a problem is graded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.rewards.code.checked import CheckedTests
from gspo_cli.rewards.code.code_tests import BadTests
from gspo_cli.rewards.code.grading import SharedTests
from gspo_cli.tasks.code_prompt import code_prompt
from gspo_cli.types import Problem

NEEDED = ("id", "contest_id", "index", "description", "official_tests")
GENERATED = "test_cases_"
PARTS = (("input_format", "Input"), ("output_format", "Output"), ("note", "Note"))
DEFAULT_LIMIT_S = 2.0


@dataclass(frozen=True)
class Place:
    """Where a problem stands."""

    contest: str
    index: str
    rating: float | None


def check_columns(row: Mapping[str, Any], where: str) -> None:
    """Errors: GspoError for a row of another schema."""
    missing = [name for name in NEEDED if row.get(name) is None]
    if missing:
        raise GspoError(
            f"{where}: no {missing[0]!r}",
            f"the columns are {', '.join(row)}; needed are {', '.join(NEEDED)}",
            "give rows in the schema of open-r1/codeforces",
        )


def problem_of(row: Mapping[str, Any], generated: Mapping[str, Path]) -> tuple[Problem, SharedTests, Place]:
    """A row as a problem with its tests and its place.

    Errors: BadTests when it cannot be graded.
    """
    if str(row.get("input_mode") or "stdio") != "stdio":
        raise BadTests("it reads a file, not stdin")
    if row.get("interaction_format"):
        raise BadTests("interactive")
    contest = str(row["contest_id"])
    path = generated.get(contest)
    tests = SharedTests(partial(tests_of, row, path))
    tests.check()
    rating = row.get("rating")
    place = Place(contest, str(row["index"]), None if rating is None else float(rating))
    return Problem(str(row["id"]), code_prompt(question_of(row), ""), ""), tests, place


def question_of(row: Mapping[str, Any]) -> str:
    """The statement in the order of the site."""
    parts = [str(row[k]).strip() for k in ("title", "description") if row.get(k)]
    parts += [f"{name}\n{str(row[key]).strip()}" for key, name in PARTS[:2] if row.get(key)]
    for example in row.get("examples") or []:
        parts.append(f"Example input\n{example['input'].strip()}\n\nExample output\n{example['output'].strip()}")
    parts += [f"{name}\n{str(row[key]).strip()}" for key, name in PARTS[2:] if row.get(key)]
    return "\n\n".join(parts)


def tests_of(row: Mapping[str, Any], path: Path | None) -> CheckedTests:
    """Official tests, then generated ones.

    Errors: BadTests.
    """
    cases = row["official_tests"]
    try:
        cases = json.loads(cases) if isinstance(cases, str) else list(cases)
        more = generated_cases(path, str(row["id"])) if path else []
        if row.get("official_tests_complete") is False and not more:
            raise BadTests("its official tests are cut off, and there are no generated ones")
        inputs, outputs = (tuple(str(case[k]) for case in (*cases, *more)) for k in ("input", "output"))
        limit_s = float(row.get("time_limit") or DEFAULT_LIMIT_S)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise BadTests(f"the tests cannot be read: {type(error).__name__}") from error
    return CheckedTests(inputs, outputs, checker=row.get("generated_checker") or None, limit_s=limit_s)


def generated_cases(path: Path, problem: str) -> list[dict[str, str]]:
    """The generated tests of one problem.

    Errors: BadTests for a file that cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, columns=["problem_id", "input", "output"], filters=[("problem_id", "=", problem)])
    except (pa.ArrowException, OSError) as error:
        raise BadTests(f"{path.name} cannot be read") from error
    return table.to_pylist()  # type: ignore[no-any-return]
