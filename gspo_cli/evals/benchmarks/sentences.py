"""The held-out problems of the tasks `arithmetic`, `sums`, `comparisons` and `stories`; need no download."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import Benchmark, DataChoice, Grade, ProblemSet
from gspo_cli.tasks.sentences import Comparisons, Sentences, Stories, Sums
from gspo_cli.types import Problem, Sampling


class SentenceGrader:
    """The tasks' reward: what the response says is the answer."""

    def __init__(self, name: str, task: Sentences) -> None:
        self.task = task
        self.about: dict[str, Any] = {"name": name, "version": 1}

    def grade(self, answers: Sequence[tuple[Problem, str]]) -> list[Grade]:
        grades = []
        for problem, text in answers:
            reason, found = self.task.reward(problem, text).reason, type(self.task).find(text)
            grades.append(Grade(reason, reason, found, found and type(self.task).find.__name__))
        return grades

    def close(self) -> None:
        """It starts nothing."""


def load(name: str, task: Sentences, choice: DataChoice) -> ProblemSet:
    """The problems of the held-out split."""
    if choice.paths or choice.revision:
        raise GspoError(
            f"{name} takes no data",
            "its problems are embedded in the program",
            f"leave out --data {name}=... and --revision {name}=...",
        )
    return ProblemSet(tuple(task.problems("held_out")), {"source": "embedded", "revision": None, "files": {}})


def benchmark(name: str, task: Sentences, description: str) -> Benchmark:
    """The benchmark of one of the tasks."""
    return Benchmark(
        name=name,
        description=f"200 held-out {description}",
        load=partial(load, name, task),
        grader=lambda _problems, _choice: SentenceGrader(name, task),
        samples=4,
        sampling=Sampling(temperature=1.0, max_new_tokens=64),
        prompt_template="plain-1",
        prompt_text="{problem}",
    )


SUMS = benchmark("sums", Sums(), "questions for a sum of two digits, the last number of the answer")
COMPARISONS = benchmark("comparisons", Comparisons(), "questions who of two has more, the first name of the answer")
STORIES = benchmark("stories", Stories(), "word problems of one step, the last number of the answer")
