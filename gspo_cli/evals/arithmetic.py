"""The embedded benchmark: the held-out split of the built-in task, 200 sums; needs no download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import Benchmark, DataChoice, Grade, ProblemSet
from gspo_cli.tasks.arithmetic import Arithmetic
from gspo_cli.types import Problem, Sampling


class ArithmeticGrader:
    """The task's own reward: the exact integer after the last `=`."""

    about: dict[str, Any] = {"name": "arithmetic", "version": 1}  # noqa: RUF012 - never changed

    def grade(self, answers: Sequence[tuple[Problem, str]]) -> list[Grade]:
        """See `Grader.grade`."""
        task = Arithmetic()
        grades = []
        for problem, text in answers:
            score = task.reward(problem, text)
            found = None if score.reason == "no_answer" else text.rsplit("=", 1)[-1]
            grades.append(Grade(score.reason, score.reason, found, found and "last ="))
        return grades

    def close(self) -> None:
        """It starts nothing."""


def load(choice: DataChoice) -> ProblemSet:
    """The problems of the held-out split, which the hash of a problem's text decides."""
    if choice.paths or choice.revision:
        raise GspoError(
            "arithmetic takes no data",
            "its problems are embedded in the program",
            "leave out --data arithmetic=... and --revision arithmetic=...",
        )
    problems = tuple(Arithmetic().problems("held_out"))
    return ProblemSet(problems, {"source": "embedded", "revision": None, "files": {}})


ARITHMETIC = Benchmark(
    name="arithmetic",
    description="200 held-out sums of digits of the built-in task, exact integer after the last '='",
    load=load,
    grader=lambda _problems: ArithmeticGrader(),
    samples=4,
    sampling=Sampling(temperature=1.0, max_new_tokens=64),
    prompt_template="plain-1",
    prompt_text="{problem}",
)
