"""The runs of a study: every arm with every seed, from one start model and in one data order."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError

from gspo_cli.algorithms import ALGORITHMS, NEEDED, AlgorithmSpec
from gspo_cli.config import Recipe
from gspo_cli.errors import GspoError
from gspo_cli.plugins import is_plugin, load_plugin
from gspo_cli.recipe import Layer, check_params, contains, no_algorithm, user_errors
from gspo_cli.training.study.checks import check_combination, check_recipe_engine
from gspo_cli.training.study.command_line import GENERAL, algo_table, check_command_line
from gspo_cli.training.study.trial import checked_names, try_algorithm


@dataclass(frozen=True)
class Run:
    """One arm with one seed."""

    arm: str
    recipe: Recipe
    """With the arm's `[algo]` filled in, the algorithm's parameters complete, and the seed set."""
    algorithm: AlgorithmSpec
    params: Any

    @property
    def name(self) -> str:
        """The run's folder within the study."""
        return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', self.arm).strip('-')}-s{self.recipe.seed}"


def plan_runs(recipe: Recipe, arms: list[str], seeds: list[int], here: bool = True) -> list[Run]:
    """The runs of a study, seed by seed, so that an interrupted study has whole pairs.

    `here` = they will run on this machine, whose device the engine must suit.
    Errors: GspoError for an unknown arm or algorithm, or parameters that it does not take.
    """
    arm_notes(recipe, arms)
    resolved = {arm: resolve_arm(recipe, arm, here) for arm in arms}
    runs = [
        Run(arm, filled.seeded(seed), algorithm, params)
        for seed in seeds
        for arm, (filled, algorithm, params) in resolved.items()
    ]
    for name, count in Counter(run.name for run in runs).items():
        if count > 1:
            twins = sorted({run.arm for run in runs if run.name == name})
            raise GspoError(
                f"arms {' and '.join(twins)} would share the run folder {name}",
                "folder names keep letters, digits, dots, hyphens and underscores of a label",
                "give one of them another label",
            )
    return runs


def find_algorithm(name: str, arms: Collection[str] = ()) -> AlgorithmSpec:
    """The algorithm of that name, or the user's own by `module:attribute`.

    Errors: GspoError for an unknown one, with the nearest algorithm or arm.
    """
    if is_plugin(name):
        return checked_names(name, AlgorithmSpec.of(load_plugin(name, needs=NEEDED)))
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    raise no_algorithm(name, ALGORITHMS, arms)


def arm_notes(recipe: Recipe, arms: Sequence[str]) -> list[str]:
    """What was set, and does not hold for all of these arms: a line each. Errors: GspoError if it holds for none."""
    return check_command_line(recipe, {arm: algorithm_of(recipe, arm) for arm in arms})


def algorithm_of(recipe: Recipe, arm: str) -> tuple[str, AlgorithmSpec]:
    """An arm's algorithm, and its name: that of its table, or its label's, or that of `[algo]`."""
    default = recipe.algo.name if arm in recipe.arms and arm not in ALGORITHMS else arm
    name = str(recipe.arms.get(arm, {}).get("name", default))
    return name, find_algorithm(name, recipe.arms)


def resolve_arm(recipe: Recipe, arm: str, here: bool = True) -> tuple[Recipe, AlgorithmSpec, Any]:
    """The recipe for one arm: a label of `[arms]`, or an algorithm's name for its plain arm.

    An arm with another algorithm than `[algo]` keeps that table's general keys (`lr`) and drops those of the other
    algorithm (`clip`, ...), unless the command line set them: a file's clip range is meant for one algorithm.
    Errors: as `plan_runs`.
    """
    name, algorithm = algorithm_of(recipe, arm)
    algo = algo_table(recipe, arm, name, algorithm)
    try:
        params = check_params(algorithm.Params, {key: value for key, value in algo.items() if key not in GENERAL})
    except ValidationError as error:
        raise locate_error(error, recipe, arm, algorithm.Params, [k for k in GENERAL if k != "name"]) from error
    except ValueError as error:
        raise GspoError(
            f"algorithm {name}: {error}", "the parameters are checked before anything runs", "correct the value"
        ) from error
    complete = recipe.algo.model_dump() | algo | asdict(params) | {"name": name}
    allowed = GENERAL | asdict(params).keys()
    table = recipe.model_dump(mode="json", exclude={"arms"})  # each arm's copy of all arms would be quadratic
    table |= {"algo": {k: v for k, v in complete.items() if k in allowed}, "arms": {}}
    try:
        filled = Recipe.model_validate(table)
    except ValidationError as error:
        raise locate_error(error, recipe, arm, Recipe) from error
    check_combination(filled, algorithm, params)
    if is_plugin(str(name)):
        try_algorithm(str(name), algorithm, params)
    if here:
        check_recipe_engine(filled, trains=True)
    return filled, algorithm, params


def locate_error(
    error: ValidationError, recipe: Recipe, arm: str, model: type[Any], also: Sequence[str] = ()
) -> GspoError:
    """A validation error with the file and table it came from: the arm's table, or `[algo]`."""
    loc = [str(part) for part in error.errors(include_url=False)[0]["loc"]]
    within = loc[1:] if loc[:1] == ["algo"] else loc
    layers = list(recipe._sources) or [Layer(f"arm {arm}", {})]
    given, prefix = [recipe._command_line, {"arms": recipe.arms}], tuple[str, ...](["algo"])
    for path, table in itertools.product((within[:1], within), reversed(given)):
        prefix = next((p for p in (("arms", arm), ("algo",)) if path and contains(table, (*p, *path))), prefix)
    return user_errors(error, layers, model, prefix=prefix, also=also, skip=len(loc) - len(within))[0]
