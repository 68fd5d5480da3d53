"""The graders of stored answers, as `gspo eval grade` names them, and the rows that they accept.

To add one, write a function that turns rows into verdicts, and name it in `GRADERS` with the fields of a row.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError, nearest
from gspo_cli.rewards.code.code_tests import BadTests, CodeTests, parse_tests
from gspo_cli.rewards.code.grading import SharedTests, Work, grade_all
from gspo_cli.rewards.math.grade import grade_aime, grade_math, grade_number
from gspo_cli.rewards.verdict import Verdict
from gspo_cli.rows import read_lines
from gspo_cli.sandbox.choose import ANY_SANDBOX, SandboxChoice, open_sandbox
from gspo_cli.sandbox.machine import physical_cores

AnswerRow = Mapping[str, Any]
Fields = Mapping[str, tuple[type, ...]]
ANSWER_FIELDS: Fields = {"response": (str,), "gold": (str, int, float)}
PROGRAM_FIELDS: Fields = {"kind": (str,), "code": (str,), "tests": (dict,)}
KINDS = ("stdin", "functional")


@dataclass(frozen=True)
class RowGrader:
    """A way to grade the rows of a file."""

    about: str
    fields: Fields
    """What a row holds besides its `id`, with the types that each field may have."""
    grade: Callable[[Sequence[AnswerRow], int, SandboxChoice], Iterable[Verdict]]
    """(rows, threads, sandbox) -> verdicts in the order of the rows. A failure of the grader is a verdict too."""
    runs_programs: bool = False


def _text_grader(check: Callable[[str, str], Verdict], about: str) -> RowGrader:
    def grade(rows: Sequence[AnswerRow], workers: int, _sandbox: SandboxChoice) -> Iterator[Verdict]:
        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(lambda row: check(row["response"], str(row["gold"])), rows)

    return RowGrader(about, ANSWER_FIELDS, grade)


def _program_grader(name: str, about: str) -> RowGrader:
    return RowGrader(about, PROGRAM_FIELDS, partial(_grade_programs, name), runs_programs=True)


def _grade_programs(name: str, rows: Sequence[AnswerRow], workers: int, choice: SandboxChoice) -> list[Verdict]:
    """The verdicts in the order of the rows. Errors: GspoError for a row of another kind, or without a sandbox."""
    unknown = next((row for row in rows if row["kind"] not in KINDS), None)
    if unknown is not None:
        raise GspoError(
            f"row {unknown['id']!r} is of kind {unknown['kind']!r}", f"the kinds are {', '.join(KINDS)}", "correct it"
        )
    work = [Work(row["code"], SharedTests(partial(row_tests, row))) for row in rows]
    with closing(open_sandbox(choice)) as sandbox:
        verdicts = [by_grader[name] for by_grader in grade_all(sandbox, (name,), work, workers).verdicts]
    return [Verdict(v.verdict, v.passed, v.reason) for v in verdicts]


def row_tests(row: AnswerRow) -> CodeTests:
    """The tests of a row, according to its kind. Errors: BadTests."""
    tests = parse_tests(row["tests"])
    if row["kind"] == "stdin":
        return replace(tests, fn_name=None)
    if tests.fn_name is None:
        raise BadTests("functional tests without fn_name")
    return tests


GRADERS: dict[str, RowGrader] = {
    "aime": _text_grader(grade_aime, "integers from 0 on, read strictly"),
    "math": _text_grader(grade_math, "mathematical answers of any kind"),
    "official": _program_grader("official", "programs, as LiveCodeBench's evaluator judges them"),
    "script": _program_grader("script", "programs, each test an ordinary process"),
    "number": _text_grader(grade_number, "plain numbers, exactly"),
}


def find_grader(name: str) -> RowGrader:
    """The grader of that name. Errors: GspoError for an unknown one, with the nearest."""
    if name not in GRADERS:
        known = "; ".join(f"{known} ({grader.about})" for known, grader in GRADERS.items())
        hint = nearest(name, GRADERS, "choose one of them")
        raise GspoError(f"no grader {name!r}", f"the graders are {known}", hint)
    return GRADERS[name]


def grade_rows(
    grader: RowGrader, rows: Sequence[AnswerRow], workers: int | None = None, sandbox: SandboxChoice = ANY_SANDBOX
) -> Iterable[Verdict]:
    """The verdicts in the order of the rows. They do not depend on the number of threads (default: one per core).

    Errors: GspoError when programs are to run and there is no sandbox.
    """
    return grader.grade(rows, workers or physical_cores(), sandbox)


TYPE_NAMES = {str: "a string", int: "a number", float: "a number", dict: "an object", list: "a list"}


def read_rows(path: Path, grader: RowGrader) -> list[dict[str, Any]]:
    """The rows of a jsonl file, each with an `id` and the grader's fields.

    Errors: GspoError for a file that cannot be read or is empty, and for the first line that is not such a row.
    """
    fields = {"id": (str, int), **grader.fields}
    names = ", ".join(map(repr, fields))
    try:
        located = list(read_lines(path))
    except GspoError as error:
        error.hint += f"; the file has one JSON object per line, with {names}"
        raise
    for where, row in located:
        for name, types in fields.items():
            if name not in row:
                present = f"it has {', '.join(map(repr, row))}" if row else "it is empty"
                raise GspoError(f"{where} has no field {name!r}", present, f"give each row {names}")
            if not isinstance(row[name], types) or isinstance(row[name], bool):
                allowed = " or ".join(dict.fromkeys(TYPE_NAMES[kind] for kind in types))
                actual = type(row[name]).__name__
                raise GspoError(f"{where}: field {name!r} is {actual}", f"it must be {allowed}", "correct that line")
            if isinstance(row[name], float) and not math.isfinite(row[name]):
                raise GspoError(f"{where}: field {name!r} is {row[name]}", "it must be finite", "correct that line")
    return [row for _, row in located]
