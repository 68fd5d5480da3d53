"""Equal tuning: the same grid of `[algo]` keys for every arm, each point an arm of its own in a study of trials."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from gspo_cli.config import Recipe, Tuning, merge
from gspo_cli.errors import GspoError
from gspo_cli.recipe import parse_set

FILE = "tuning.json"
"""In the trials' study: what was tried, what it cost, what was chosen."""


def parse_grid(texts: list[str]) -> dict[str, list[Any]]:
    """`algo.lr=5e-5,1e-4` -> key and values.

    Errors: GspoError for a key outside `[algo]`, or fewer than two values.
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        key, _, values = text.partition("=")
        found = [_value(key, part) for part in values.split(",") if part.strip()]
        if not key.startswith("algo.") or len(found) < 2:
            raise GspoError(
                f"--grid {text} is no grid", "it is a key of [algo] with two values or more, by commas",
                "e.g. --grid algo.lr=5e-5,1e-4",
            )  # fmt: skip
        grid[key.removeprefix("algo.")] = found
    return grid


def _value(key: str, text: str) -> Any:
    table: Any = parse_set(f"{key}={text.strip()}").table
    for part in key.split("."):
        table = table[part]
    return table


def expand(recipe: Recipe, arms: list[str], grid: dict[str, list[Any]]) -> tuple[Recipe, list[str], dict[str, Any]]:
    """(the recipe with an arm a trial, the trials' labels, trial -> its arm and chosen keys)."""
    table, trials = dict(recipe.arms), dict[str, Any]()
    for arm in arms:
        for number, values in enumerate(itertools.product(*grid.values()), start=1):
            chosen = dict(zip(grid, values, strict=True))
            label = f"{arm}.{number}"
            table[label] = apply(recipe.arms.get(arm, {"name": arm}), chosen)
            trials[label] = {"arm": arm, "chosen": chosen}
    filled = recipe.model_copy(update={"arms": table})
    filled._sources = recipe._sources
    return filled, list(trials), trials


def apply(arm: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    """An arm's table with dotted keys set."""
    for key, value in chosen.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        arm = merge(arm, value)
    return arm


def with_tuning(recipe: Recipe, arms: list[str], seeds: list[int], study: Path) -> Recipe:
    """The recipe with each arm's choice from a study of trials, and what that cost recorded under `report.tuning`.

    Errors: GspoError if the trials lack an arm or used one of these seeds.
    """
    try:
        found = json.loads((study / FILE).read_text(encoding="utf-8"))
        tuning = {arm: Tuning.model_validate({k: v for k, v in found["arms"][arm].items() if k != "scores"})
                  for arm in arms}  # fmt: skip
    except KeyError as error:
        raise GspoError(
            f"{study / FILE} has no arm {error}", "every arm of a fair study is tuned alike",
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
                f"seed {shared[0]} was used to tune {arm}", "what chose a setting cannot test it", "take other --seeds"
            )
    table = {arm: apply(recipe.arms.get(arm, {"name": arm}), tuning[arm].chosen) for arm in arms}
    report = recipe.report.model_copy(update={"tuning": {**recipe.report.tuning, **tuning}})
    filled = recipe.model_copy(update={"arms": {**recipe.arms, **table}, "report": report})
    filled._sources = recipe._sources
    return filled
