"""The checkers of mathematics answers as graders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gspo_cli.evals.benchmark import Grade, ProblemSet
from gspo_cli.rewards.final_number import final_number, number
from gspo_cli.types import Problem


class NumberGrader:
    """Stand-in: compares final numbers."""

    def __init__(self, name: str) -> None:
        self.about: dict[str, Any] = {"name": name, "version": 0}

    def grade(self, answers: Sequence[tuple[Problem, str]]) -> list[Grade]:
        """See `Grader.grade`."""
        grades = []
        for problem, text in answers:
            found = final_number(text)
            if found is None:
                grades.append(Grade("no_answer", "no_answer"))
            else:
                right = found == number(problem.answer)
                grades.append(Grade("correct" if right else "wrong", "", str(found), "box"))
        return grades

    def close(self) -> None:
        """It starts nothing."""


def aime_grader(_problems: ProblemSet) -> NumberGrader:
    return NumberGrader("aime")


def math_grader(_problems: ProblemSet) -> NumberGrader:
    return NumberGrader("math")


def gsm8k_grader(_problems: ProblemSet) -> NumberGrader:
    return NumberGrader("gsm8k")
