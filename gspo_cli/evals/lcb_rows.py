"""Rows of LiveCodeBench: which files a release has, which rows a window has, and their tests, which stay packed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.evals.rows import read_files
from gspo_cli.rewards.code.code_tests import BadTests
from gspo_cli.rewards.code.grading import SharedTests
from gspo_cli.rewards.code.packed_tests import unpack_tests
from gspo_cli.tasks.code_prompt import code_prompt
from gspo_cli.types import Problem

NEEDED = ("question_id", "question_content", "contest_date", "public_test_cases", "private_test_cases", "metadata")
RELEASES = {f"release_v{k}": ("test.jsonl", *(f"test{i}.jsonl" for i in range(2, k + 1))) for k in range(1, 7)}


@dataclass(frozen=True, slots=True)
class Window:
    """Two days, both at midnight, as the official filter has them."""

    start: datetime
    end: datetime

    @property
    def text(self) -> str:
        """`2024-10-01..2025-02-01`."""
        return f"{self.start:%Y-%m-%d}..{self.end:%Y-%m-%d}"


def parse_window(text: str) -> Window:
    """Errors: GspoError for anything but two days in order."""
    first, dots, last = text.partition("..")
    try:
        start, end = (datetime.strptime(day, "%Y-%m-%d") for day in (first, last))
        if not dots or start > end:
            raise ValueError("the first day comes after the last")
    except ValueError as error:
        raise GspoError(f"window {text!r}", str(error), "the form is 2024-10-01..2025-02-01") from error
    return Window(start, end)


def files_of(release: str) -> tuple[str, ...]:
    """The files of a release.

    Errors: GspoError for an unknown one.
    """
    if release not in RELEASES:
        raise GspoError(f"no release {release!r}", f"the releases are {', '.join(RELEASES)}", "name one of them")
    return RELEASES[release]


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, one at a time where it is jsonl: the published files are gigabytes.

    Errors: GspoError.
    """
    if path.suffix != ".jsonl" or not path.is_file():
        yield from (row for file in read_files((path,)) for row in file.rows)
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _row(line, f"{path}, line {number}")


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise GspoError(f"{where} is not JSON", str(error), "mend the file, or give another one") from error
    if not isinstance(row, dict):
        raise GspoError(f"{where} is not an object", "a row has named fields", "mend that line")
    return row


def check_columns(row: dict[str, Any], where: str) -> None:
    """Errors: GspoError for a row that is none of LiveCodeBench's."""
    missing = [name for name in NEEDED if name not in row]
    if missing:
        raise GspoError(
            f"{where}: no column {missing[0]!r}",
            f"the columns are {', '.join(row)}; needed are {', '.join(NEEDED)}",
            "give rows in the schema of livecodebench/code_generation_lite",
        )


def date_of(row: dict[str, Any], where: str) -> datetime:
    """When a problem's contest began.

    Errors: GspoError.
    """
    try:
        return datetime.fromisoformat(str(row["contest_date"])).replace(tzinfo=None)
    except ValueError as error:
        raise GspoError(f"{where}: contest_date of {row['question_id']!r}", str(error), "mend that row") from error


def problem_of(row: dict[str, Any]) -> tuple[Problem, SharedTests]:
    """A row as a problem with its tests.

    Errors: BadTests when it cannot be graded.
    """
    public, private, metadata = (str(row[k] or "") for k in ("public_test_cases", "private_test_cases", "metadata"))
    tests = SharedTests(partial(unpack_tests, public, private, metadata))
    tests.check()
    prompt = code_prompt(str(row["question_content"]), str(row.get("starter_code") or "").rstrip())
    return Problem(str(row["question_id"]), prompt, ""), tests


def problems_of(rows: list[dict[str, Any]]) -> tuple[list[Problem], dict[str, SharedTests], dict[str, list[str]]]:
    """(problems, tests by id, reason -> ids of those that cannot be graded), in the order of the rows.

    Errors: GspoError for an id that stands twice.
    """
    problems, payload, excluded = [], {}, dict[str, list[str]]()
    for row in rows:
        identity = str(row["question_id"])
        if identity in payload:
            raise GspoError(f"two problems with the id {identity}", "answers are kept by id", "remove one row")
        try:
            problem, payload[identity] = problem_of(row)
            problems.append(problem)
        except BadTests as error:
            excluded.setdefault(str(error), []).append(identity)
    return problems, payload, excluded


def sha256_of(path: Path) -> str:
    """Of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
