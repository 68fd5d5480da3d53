"""The graders of stored answers, as `gspo eval grade` names them.

To add one: write its function of a row and name it below with the fields that its rows must have.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.rewards.aime import grade_aime
from gspo_cli.rewards.mathematics import grade_math, grade_number
from gspo_cli.rewards.verdict import Verdict

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Grader:
    """A way to judge rows of a file."""

    about: str
    fields: Mapping[str, tuple[type, ...]]
    """What a row holds besides its `id`, and the types that each may have."""
    grade: Callable[[Row], Verdict]
    """Judges one row, in any thread; a failure of the grader itself is a verdict, not an exception."""


def _of_text(check: Callable[[str, str], Verdict]) -> Callable[[Row], Verdict]:
    return lambda row: check(row["response"], str(row["gold"]))


ANSWER: Mapping[str, tuple[type, ...]] = {"response": (str,), "gold": (str, int, float)}

GRADERS: dict[str, Grader] = {
    "aime": Grader("integers from 0 on, read strictly", ANSWER, _of_text(grade_aime)),
    "math": Grader("mathematical answers of any kind", ANSWER, _of_text(grade_math)),
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


def grade_rows(grader: Grader, rows: Iterable[Row], workers: int | None = None) -> Iterator[Verdict]:
    """The verdicts in the order of the rows, which do not depend on how many threads work; by default one a core."""
    pool = ThreadPoolExecutor(workers or os.cpu_count())
    try:
        yield from pool.map(grader.grade, rows)
    finally:
        pool.shutdown(cancel_futures=True)
