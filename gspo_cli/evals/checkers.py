"""The checkers of `rewards` as graders of benchmarks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gspo_cli import rewards
from gspo_cli.evals.benchmark import Grade, ProblemSet
from gspo_cli.rewards.graders import find_grader, grade_rows
from gspo_cli.runlog.provenance import installed
from gspo_cli.types import Problem


class TextGrader:
    """Compares texts with references by one of the named graders; the same code is the training reward."""

    def __init__(self, name: str) -> None:
        self.grader = find_grader(name)
        self.about: dict[str, Any] = {
            "name": name,
            "version": source_version(),
            "math_verify": installed("math-verify"),
        }

    def grade(self, answers: Sequence[tuple[Problem, str]]) -> list[Grade]:
        """See `Grader.grade`."""
        rows = [{"response": text, "gold": problem.answer} for problem, text in answers]
        verdicts = grade_rows(self.grader, rows)
        return [Grade(v.verdict, v.reason, v.extracted, v.extracted_by) for v in verdicts]

    def close(self) -> None:
        """Workers of computer algebra are kept for the next benchmark; they end with this process."""


def aime_grader(_problems: ProblemSet) -> TextGrader:
    """Integers, read strictly."""
    return TextGrader("aime")


def math_grader(_problems: ProblemSet) -> TextGrader:
    """Answers of any mathematical kind."""
    return TextGrader("math")


def number_grader(_problems: ProblemSet) -> TextGrader:
    """Plain numbers, exactly."""
    return TextGrader("number")


def source_version() -> str:
    """The first 12 hex digits of sha256 over the checkers' source: any change of a rule regrades stored answers."""
    digest = hashlib.sha256()
    for path in sorted(Path(rewards.__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
