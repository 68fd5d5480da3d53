"""The held-out problems of the tasks `arithmetic`, `sums`, `comparisons` and `stories`; need no download."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import EMBEDDED, Benchmark, DataChoice, Grade, Grader, ProblemSet, refuse_data
from gspo_cli.tasks.arithmetic import Arithmetic, OneAnswer
from gspo_cli.tasks.sentences import Comparisons, Stories, Sums
from gspo_cli.types import Problem, Sampling, visible

VERSION = 2


class TaskGrader(Grader):
    """The task's reward: what the response says is the answer."""

    def __init__(self, name: str, task: OneAnswer) -> None:
        self.task = task
        self.about: dict[str, Any] = {"name": name, "version": VERSION}

    def grade(self, answers: Sequence[tuple[Problem, str]]) -> list[Grade]:
        grades = []
        for problem, text in answers:
            reason, found = self.task.reward(problem, text).reason, self.task.find(visible(text) or "")
            grades.append(Grade(reason, reason, found, found and self.task.found_by))
        return grades


def load_sentences(name: str, task: OneAnswer, choice: DataChoice) -> ProblemSet:
    """The problems of the held-out split."""
    refuse_data(name, choice)
    return ProblemSet(tuple(task.problems("held_out")), EMBEDDED)


def load_arithmetic(choice: DataChoice) -> ProblemSet:
    """The problems of the held-out split, which the hash of a problem's text decides; rows of other lengths by
    `--data arithmetic=8-11`."""
    wanted = ",".join(map(str, choice.paths))
    lengths = re.fullmatch(r"([2-9]|[1-9]\d)-([5-9]|[1-9]\d)", wanted)
    terms = (int(lengths[1]), int(lengths[2])) if lengths else None
    if choice.revision or (wanted and (terms is None or terms[0] > terms[1])):
        raise GspoError(
            f"arithmetic takes no data but the length of its rows, not {choice.revision or wanted!r}",
            "its problems are embedded in the program",
            "e.g. --data arithmetic=8-11 for rows of 8 to 11 digits, or leave it out",
        )
    source = EMBEDDED | ({"rows": list(terms)} if terms else {})
    return ProblemSet(tuple(Arithmetic(terms).problems("held_out")), source)


def benchmark(task: OneAnswer, description: str, load: Callable[[DataChoice], ProblemSet] | None = None) -> Benchmark:
    """The benchmark of one of the tasks."""
    name = type(task).__name__.lower()
    return Benchmark(
        name=name,
        description=f"200 held-out {description}",
        load=load or partial(load_sentences, name, task),
        grader=lambda _problems, _choice: TaskGrader(name, task),
        samples=4,
        sampling=Sampling(temperature=1.0, max_new_tokens=64),
        prompt_template="plain-1",
        prompt_text="{problem}",
    )


ARITHMETIC = benchmark(
    Arithmetic(), "sums of digits of the built-in task, exact integer after the last '='", load_arithmetic
)
SUMS = benchmark(Sums(), "questions for a sum of two digits, the last number of the answer")
COMPARISONS = benchmark(Comparisons(), "questions who of two has more, the first name of the answer")
STORIES = benchmark(Stories(), "word problems of one step, the last number of the answer")
