"""The runs of a study: every arm with every seed, from one start model and in one data order."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from pydantic import ValidationError

from gspo_cli.algorithms import ALGORITHMS, NEEDED, Algorithm
from gspo_cli.config import Recipe, merge
from gspo_cli.errors import GspoError
from gspo_cli.plugins import is_plugin, load_plugin
from gspo_cli.recipe import Layer, check_params, user_errors
from gspo_cli.training.study.checks import check_combination, check_recipe_engine
from gspo_cli.training.study.trial import check_names, try_algorithm


@dataclass(frozen=True)
class Run:
    """One arm with one seed."""

    arm: str
    recipe: Recipe
    """With the arm's `[algo]` filled in, the algorithm's parameters complete, and the seed set."""
    algorithm: Algorithm
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
    resolved = {arm: resolve_arm(recipe, arm, here) for arm in arms}
    return [
        Run(arm, filled.seeded(seed), algorithm, params)
        for seed in seeds
        for arm, (filled, algorithm, params) in resolved.items()
    ]


def find_algorithm(name: str, arms: Sequence[str] = ()) -> Algorithm:
    """The algorithm of that name, or the user's own by `module:attribute`.

    Errors: GspoError for an unknown one, with the nearest algorithm or arm.
    """
    if is_plugin(name):
        loaded = cast(Algorithm, load_plugin(name, needs=NEEDED))
        check_names(name, loaded)
        return loaded
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    near = difflib.get_close_matches(name, [*ALGORITHMS, *arms], n=1)
    raise GspoError(
        f"no algorithm or arm {name!r}",
        f"the algorithms are {', '.join(ALGORITHMS)}" + (f"; the recipe's arms are {', '.join(arms)}" if arms else ""),
        f"did you mean {near[0]!r}?" if near else "choose one of them with --algo",
    )


def resolve_arm(recipe: Recipe, arm: str, here: bool = True) -> tuple[Recipe, Algorithm, Any]:
    """The recipe for one arm: a label of `[arms]`, or an algorithm's name for its plain arm.

    An arm with another algorithm than `[algo]` keeps that table's general keys (`lr`) and drops those of the other
    algorithm (`clip`, ...): one algorithm's clip range means nothing to another.
    Errors: as `plan_runs`.
    """
    arm_table = recipe.arms.get(arm, {"name": arm})
    name = arm_table.get("name", recipe.algo.name)
    algorithm = find_algorithm(str(name), list(recipe.arms))
    algo = recipe.algo.model_dump(exclude_unset=True)
    if name != recipe.algo.name:
        algo = {key: value for key, value in algo.items() if key not in recipe.algo.params}
    algo = merge(getattr(algorithm, "PRESET", {}), merge(algo, arm_table))
    if hasattr(algorithm, "run_defaults"):
        for key, value in algorithm.run_defaults(recipe).items():
            algo.setdefault(key, value)
    general = type(recipe.algo).model_fields.keys()
    try:
        params = check_params(algorithm.Params, {key: value for key, value in algo.items() if key not in general})
    except ValidationError as error:
        raise locate_error(error, recipe, arm, algorithm.Params, [k for k in general if k != "name"]) from error
    except ValueError as error:
        raise GspoError(
            f"algorithm {name}: {error}", "the parameters are checked before anything runs", "correct the value"
        ) from error
    complete = recipe.algo.model_dump() | algo | asdict(params) | {"name": name}
    allowed = general | asdict(params).keys()
    table = recipe.model_dump(mode="json") | {"algo": {k: v for k, v in complete.items() if k in allowed}, "arms": {}}
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
    prefix = ("arms", arm) if within[:1] and within[0] in recipe.arms.get(arm, {}) else ("algo",)
    return user_errors(error, layers, model, prefix=prefix, also=also, skip=len(loc) - len(within))[0]
