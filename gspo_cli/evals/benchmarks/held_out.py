"""The rows that a recipe holds out (`task.held_out`), with its own prompts, sampling and rewards: the mean reward."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gspo_cli.config import Recipe
from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import Benchmark, DataChoice, Grade, Grader, ProblemSet, refuse_data, source_version
from gspo_cli.plugins import is_plugin, plugin_source
from gspo_cli.rollout.engine import full_distribution
from gspo_cli.task_config import environment_module
from gspo_cli.tasks import make_task
from gspo_cli.tasks.rewards import own_code
from gspo_cli.tasks.scoring import score
from gspo_cli.types import Problem

NAME = "held_out"


class RewardGrader(Grader):
    """The recipe's rewards. An answer counts as correct from a reward of 1 on; what has no reward is left out."""

    def __init__(self, recipe: Recipe) -> None:
        self.task, self.config = make_task(recipe.task), recipe.task
        names = [recipe.task.reward or "", *(part.name for part in recipe.task.rewards)]
        rules = recipe.task.model_dump(mode="json", include={"reward", "rewards"})
        if recipe.task.environment is not None:
            rules |= {"environment": recipe.task.environment, "args": recipe.task.args}
            names.append(environment_module(recipe.task.environment))
        sources = [plugin_source(name) for name in names if is_plugin(name)]
        own = [source_version(Path(__file__).parents[2] / part) for part in ("rewards", "tasks")]
        version = hashlib.sha256(json.dumps([rules, sources, own]).encode()).hexdigest()[:12]
        self.about: dict[str, Any] = {"name": NAME, "version": version}

    def grade(self, answers: Sequence[tuple[Problem, str]]) -> list[Grade]:
        deadline = self.config.deadline_s if own_code(self.config) else None
        grades = []
        for found in score(self.task, list(answers), deadline):
            right = "grader_error" if found.value is None else "correct" if found.value >= 1 else "wrong"
            grades.append(Grade(right, found.reason, value=found.value))
        return grades


def held_out(recipe: Recipe | None) -> Benchmark:
    """The benchmark of a recipe. Errors: GspoError if it holds out no rows."""
    if recipe is None or recipe.task.held_out is None:
        raise GspoError(
            "held_out without rows that are held out",
            "it evaluates a run of task data or verifiers whose recipe sets task.held_out",
            "name such a run, or set task.held_out=0.1 in the recipe",
        )

    def load(choice: DataChoice) -> ProblemSet:
        refuse_data(NAME, choice)
        task = recipe.task
        source: dict[str, Any] = {
            "source": task.path or task.environment,
            "held_out": task.held_out,
            "revision": task.revision,
            "files": {},
        }
        return ProblemSet(tuple(make_task(task).problems(NAME)), source)

    return Benchmark(
        name=NAME,
        description="the rows of one's own data that are not trained on, by the recipe's rewards",
        load=load,
        grader=lambda _problems, _choice: RewardGrader(recipe),
        samples=recipe.eval.samples or 4,
        sampling=full_distribution(recipe.rollout),
        prompt_template="own",
        prompt_text=recipe.task.template or "{problem}",
        recipe=recipe,
    )
