"""Programs as rows of a file: `kind` (stdin or functional), `code`, and `tests` as `code_tests` reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.rewards.code.code_tests import BadTests, CodeTests, tests_from
from gspo_cli.rewards.code.grading import SharedTests, Work, grade_all
from gspo_cli.rewards.verdict import Verdict
from gspo_cli.sandbox.choose import SandboxChoice, open_sandbox

PROGRAM: Mapping[str, tuple[type, ...]] = {"kind": (str,), "code": (str,), "tests": (dict,)}
KINDS = ("stdin", "functional")


def of_programs(grader: str) -> Callable[[Sequence[Mapping[str, Any]], int, SandboxChoice], list[Verdict]]:
    """A grader of rows, which opens the sandbox before it looks at any of them."""
    return partial(grade_programs, grader)


def grade_programs(
    grader: str, rows: Sequence[Mapping[str, Any]], workers: int, choice: SandboxChoice
) -> list[Verdict]:
    """The verdicts in the order of the rows.

    Errors: GspoError for a row of another kind, or without a sandbox.
    """
    strange = next((row for row in rows if row["kind"] not in KINDS), None)
    if strange is not None:
        raise GspoError(f"row {strange['id']!r} is of kind {strange['kind']!r}", f"kinds are {KINDS}", "mend the row")
    work = [Work(row["code"], SharedTests(partial(tests_of, row))) for row in rows]
    with closing(open_sandbox(choice)) as sandbox:
        found = [verdicts[grader] for verdicts in grade_all(sandbox, (grader,), work, workers).verdicts]
    return [Verdict(v.verdict, v.passed, v.reason) for v in found]


def tests_of(row: Mapping[str, Any]) -> CodeTests:
    """The tests of a row, as its kind has them.

    Errors: BadTests.
    """
    tests = tests_from(row["tests"])
    if row["kind"] == "stdin":
        return replace(tests, fn_name=None)
    if tests.fn_name is None:
        raise BadTests("functional tests without fn_name")
    return tests
