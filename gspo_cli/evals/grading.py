"""Grading beside generation: a thread grades each portion while the engine draws the next."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from gspo_cli.evals.answers import Answer
from gspo_cli.evals.benchmark import Grade, Grader, ProblemSet


class Grading:
    """Collects the grades of portions, in whatever order they are submitted."""

    def __init__(self, grader: Grader, problems: ProblemSet, opening: str = "") -> None:
        """`opening` = what of the response stands in the prompt already (see `runner.Plan.opening`)."""
        self.grader = grader
        self.problems = {p.id: p for p in problems.problems}
        self.opening = opening
        self.pool = ThreadPoolExecutor(1, "grading")
        self.pending: dict[int, Future[list[Grade]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.grader.close()

    def submit(self, index: int, answers: list[Answer]) -> None:
        """Grades a portion when its turn comes."""
        pairs = [(self.problems[a.problem_id], self.opening + a.text) for a in answers]
        self.pending[index] = self.pool.submit(self.grader.grade, pairs)

    def result(self) -> list[Grade]:
        """The grades of all portions, in their order.

        Errors: whatever the grader raised.
        """
        return [grade for index in sorted(self.pending) for grade in self.pending[index].result()]
