"""A study: arms x seeds, each its own run, all from one start model and one data order."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError

from gspo_cli.algorithms import ALGORITHMS, Algorithm
from gspo_cli.config import Recipe, check_params, merge
from gspo_cli.errors import GspoError
from gspo_cli.recipe import Layer, user_error


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
        return f"{self.arm}-s{self.recipe.seed}"


def plan(recipe: Recipe, arms: list[str], seeds: list[int]) -> list[Run]:
    """The runs of a study, seed by seed, so that an interrupted study has whole pairs.

    Errors: GspoError for an unknown arm or algorithm, or parameters that it does not take.
    """
    resolved = {arm: resolve_arm(recipe, arm) for arm in arms}
    return [
        Run(arm, filled.model_copy(update={"seed": seed}), algorithm, params)
        for seed in seeds
        for arm, (filled, algorithm, params) in resolved.items()
    ]


def resolve_arm(recipe: Recipe, arm: str) -> tuple[Recipe, Algorithm, Any]:
    """The recipe for one arm: a label of `[arms]`, or an algorithm's name for its plain arm.

    An arm with another algorithm than `[algo]` keeps that table's general keys (`lr`) and drops the ones that belong
    to the other algorithm (`clip`, ...): one algorithm's clip range means nothing to another.
    """
    change = recipe.arms.get(arm, {"name": arm})
    name = change.get("name", recipe.algo.name)
    if name not in ALGORITHMS:
        known = [*ALGORITHMS, *(a for a in recipe.arms if a != arm)]
        near = difflib.get_close_matches(str(name), known, n=1)
        raise GspoError(
            f"no algorithm or arm {name!r}",
            f"the algorithms are {', '.join(ALGORITHMS)}"
            + (f"; the recipe's arms are {', '.join(recipe.arms)}" if recipe.arms else ""),
            f"did you mean {near[0]!r}?" if near else "choose one of them with --algo",
        )
    algo = recipe.algo.model_dump()
    if name != recipe.algo.name:
        algo = {k: v for k, v in algo.items() if k not in recipe.algo.params}
    algo = merge(algo, change)
    own = {k: v for k, v in algo.items() if k not in type(recipe.algo).model_fields}
    try:
        params = check_params(ALGORITHMS[name].Params, own)
    except ValidationError as error:
        layers = [Layer(f"[arms.{arm}]" if arm in recipe.arms else f"algorithm {name}", {"algo": own})]
        raise user_error(error, layers, ALGORITHMS[name].Params, prefix=("algo",)) from error
    except ValueError as error:
        raise GspoError(
            f"algorithm {name}: {error}", "the parameters are checked before anything runs", "mend it"
        ) from error
    complete = merge(algo, asdict(params))
    table = recipe.model_dump(mode="json") | {"algo": complete | {"name": name}, "arms": {}}
    return Recipe.model_validate(table), ALGORITHMS[name], params
