"""Equal tuning: the same grid of `[algo]` keys for every arm; each grid point is an arm in a study of trials."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from gspo_cli.config import Recipe, Tuning, merge, nest
from gspo_cli.errors import GspoError
from gspo_cli.recipe import parse_set

FILE = "tuning.json"
"""In the study of trials: what was tried, what it cost, what was chosen."""


def parse_grid(texts: list[str]) -> dict[str, list[Any]]:
    """`algo.lr=5e-5,1e-4` -> key and values. Errors: GspoError for a key outside `[algo]`, or fewer than two values."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        key, _, values = text.partition("=")
        found = [_parse_value(key, part) for part in values.split(",") if part.strip()]
        if not key.startswith("algo.") or len(found) < 2:
            raise GspoError(
                f"--grid {text} is not a grid", "a grid is a key of [algo] with at least two values, comma-separated",
                "e.g. --grid algo.lr=5e-5,1e-4",
            )  # fmt: skip
        grid[key.removeprefix("algo.")] = found
    return grid


def _parse_value(key: str, text: str) -> Any:
    table: Any = parse_set(f"{key}={text.strip()}").table
    for part in key.split("."):
        table = table[part]
    return table


def expand(recipe: Recipe, arms: list[str], grid: dict[str, list[Any]]) -> tuple[Recipe, list[str], dict[str, Any]]:
    """(the recipe with one arm per trial, the trials' labels, trial -> its arm and chosen keys)."""
    trial_arms, trials = dict(recipe.arms), dict[str, Any]()
    for arm in arms:
        for number, values in enumerate(itertools.product(*grid.values()), start=1):
            chosen, label = dict(zip(grid, values, strict=True)), f"{arm}.{number}"
            trial_arms[label] = with_chosen(recipe, arm, chosen)
            trials[label] = {"arm": arm, "chosen": chosen}
    return recipe.model_copy(update={"arms": trial_arms}), list(trials), trials


def with_chosen(recipe: Recipe, arm: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """An arm's table with dotted keys set."""
    table = recipe.arms.get(arm, {"name": arm})
    for key, value in chosen.items():
        table = merge(table, nest(key, value))
    return table


def with_tuning(recipe: Recipe, arms: list[str], seeds: list[int], study: Path) -> Recipe:
    """The recipe with each arm's choice from a study of trials; the cost is recorded under `report.tuning`.

    Errors: GspoError if the trials lack an arm or used one of these seeds.
    """
    try:
        found = json.loads((study / FILE).read_text(encoding="utf-8"))
        tuning = {
            arm: Tuning.model_validate(
                {k: v for k, v in found["arms"][arm].items() if k != "scores"} | {"grid": _grid(found["arms"][arm])}
            )
            for arm in arms
        }
    except KeyError as error:
        raise GspoError(
            f"{study / FILE} has no arm {error}", "in a fair study every arm is tuned alike",
            "tune it with the same --grid, or leave the arm out",
        ) from error  # fmt: skip
    except (OSError, ValueError) as error:
        raise GspoError(
            f"{study} holds no finished tuning",
            str(error),
            "make one: gspo train --algo ARMS --grid KEY=VALUES --seeds ...",
        ) from error
    for arm, own in tuning.items():
        if shared := sorted(set(own.seeds) & set(seeds)):
            raise GspoError(
                f"seed {shared[0]} was used to tune {arm}",
                "a seed that chose a setting cannot test it",
                "choose other --seeds",
            )
    chosen_arms = {arm: with_chosen(recipe, arm, tuning[arm].chosen) for arm in arms}
    report = recipe.report.model_copy(update={"tuning": {**recipe.report.tuning, **tuning}})
    return recipe.model_copy(update={"arms": {**recipe.arms, **chosen_arms}, "report": report})


def _grid(arm: dict[str, Any]) -> dict[str, list[Any]]:
    """The values tried for each chosen key, from the trials' scores, in the order of size where they are numbers."""
    tried = {key: [row[key] for row in arm.get("scores", ()) if key in row] for key in arm["chosen"]}
    return {key: sorted(dict.fromkeys(values), key=lambda v: (str(type(v)), v)) for key, values in tried.items()}
