"""The graders of stored answers, as `gspo eval grade` names them.

To add one: write its function of a row and name it below with the fields that its rows must have.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.rewards.aime import grade_aime
from gspo_cli.rewards.code.rows import PROGRAM, of_programs
from gspo_cli.rewards.mathematics import grade_math, grade_number
from gspo_cli.rewards.verdict import Verdict
from gspo_cli.sandbox.choose import ANY_SANDBOX, SandboxChoice
from gspo_cli.sandbox.machine import physical_cores

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Grader:
    """A way to judge rows of a file."""

    about: str
    fields: Mapping[str, tuple[type, ...]]
    """What a row holds besides its `id`, and the types that each may have."""
    grade: Callable[[Sequence[Row], int, SandboxChoice], Iterable[Verdict]]
    """Judges rows in their order with so many threads; a failure of the grader itself is a verdict, no exception."""
    runs_programs: bool = False


def _of_text(check: Callable[[str, str], Verdict]) -> Callable[[Sequence[Row], int, SandboxChoice], Iterator[Verdict]]:
    def grade(rows: Sequence[Row], workers: int, _sandbox: SandboxChoice) -> Iterator[Verdict]:
        pool = ThreadPoolExecutor(workers)
        try:
            yield from pool.map(lambda row: check(row["response"], str(row["gold"])), rows)
        finally:
            pool.shutdown(cancel_futures=True)

    return grade


ANSWER: Mapping[str, tuple[type, ...]] = {"response": (str,), "gold": (str, int, float)}

GRADERS: dict[str, Grader] = {
    "aime": Grader("integers from 0 on, read strictly", ANSWER, _of_text(grade_aime)),
    "math": Grader("mathematical answers of any kind", ANSWER, _of_text(grade_math)),
    "official": Grader("programs, as LiveCodeBench's evaluator judges them", PROGRAM, of_programs("official"), True),
    "script": Grader("programs, each test an ordinary process", PROGRAM, of_programs("script"), True),
    "number": Grader("plain numbers, exactly", ANSWER, _of_text(grade_number)),
}


def find_grader(name: str) -> Grader:
    """The grader of that name.

    Errors: GspoError for an unknown one, with the nearest.
    """
    if name not in GRADERS:
        near = difflib.get_close_matches(name, GRADERS, n=1)
        known = "; ".join(f"{known} ({grader.about})" for known, grader in GRADERS.items())
        hint = f"did you mean {near[0]!r}?" if near else "choose one of them"
        raise GspoError(f"no grader {name!r}", f"the graders are {known}", hint)
    return GRADERS[name]


def grade_rows(
    grader: Grader, rows: Sequence[Row], workers: int | None = None, sandbox: SandboxChoice = ANY_SANDBOX
) -> Iterable[Verdict]:
    """The verdicts in the order of the rows, which do not depend on how many threads work; by default one a core.

    Errors: GspoError when programs are to run and there is no sandbox.
    """
    return grader.grade(rows, workers or physical_cores(), sandbox)
