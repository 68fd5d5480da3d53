"""A run's recipe on resume: it must be the one that the run began with, but for changes that are allowed by name."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gspo_cli.config import Recipe, merge
from gspo_cli.errors import GspoError
from gspo_cli.recipe import parse_set
from gspo_cli.runlog.log import canonical
from gspo_cli.runlog.read import read_object

MAY_CHANGE = ("train.steps", "checkpoint.", "eval.", "guards.", "rollout.store", "rollout.deadline_s",
              "rollout.kv_budget_gb", "model.device", "model.threads", "train.divide")  # fmt: skip
"""Keys of a recipe that a resume may change at all; any other would make the run two experiments in one log."""


def overrides(steps: int | None, sets: list[str]) -> dict[str, Any]:
    """What the command line asks for on top of the run's recipe."""
    table: dict[str, Any] = {} if steps is None else {"train": {"steps": steps}}
    for assignment in sets:
        table = merge(table, parse_set(assignment).table)
    return table


def read_config(run: Path) -> Recipe:
    """The recipe in a run's `config.json`.

    Errors: GspoError when it is not there or is no recipe of this version.
    """
    return as_recipe(read_object(run / "config.json"))


def as_recipe(config: dict[str, Any]) -> Recipe:
    """Errors: GspoError for a table that is no recipe of this version."""
    try:
        return Recipe.model_validate(config)
    except ValidationError as error:
        raise GspoError(
            "config.json is no recipe of this version",
            str(error.errors(include_url=False)[0]["msg"]),
            "resume with the version that wrote it (run.json names it)",
        ) from error


def changed(
    config: dict[str, Any], before: dict[str, Any], overrides: dict[str, Any], allowed: list[str], expected: str
) -> tuple[Recipe, dict[str, Any]]:
    """The run's recipe with the changes that were allowed, now or earlier, and these.

    Errors: GspoError with every difference that was not allowed, and for a `config.json` that was edited.
    """
    recipe = as_recipe(config)
    if config_hash(recipe) != expected:
        raise GspoError(
            "config.json is not the recipe that the run was started with",
            "its sha256 differs from the one in run.json",
            "restore it; changes go through --set and --allow-change",
        )
    table = recipe.model_dump(mode="json")
    current = flat(table) | before
    try:
        wanted = Recipe.model_validate(merge(merge(table, nested(before)), overrides))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise GspoError(
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}", "the changed recipe is not valid", "correct --set"
        ) from error
    differ = {k: v for k, v in flat(wanted.model_dump(mode="json")).items() if v != current.get(k) and k != "name"}
    refused = [k for k in differ if k not in allowed or not k.startswith(MAY_CHANGE)]
    if refused:
        never = [k for k in refused if not k.startswith(MAY_CHANGE)]
        raise GspoError(
            "the recipe differs from the run's: "
            + "; ".join(f"{k} = {current.get(k)!r} -> {differ[k]!r}" for k in refused),
            f"{never[0]} is part of the experiment" if never else "a change in the middle of a run must be meant",
            "start another run with it" if never else " ".join(f"--allow-change {k}" for k in refused),
        )
    return wanted, before | differ


def config_hash(recipe: Recipe) -> str:
    """sha256 of a recipe but its name."""
    return hashlib.sha256(config_text(recipe).encode()).hexdigest()


def config_text(recipe: Recipe) -> str:
    """What that hash, and the log's first line, are taken of."""
    return canonical({key: value for key, value in config_table(recipe).items() if key != "name"})


def config_table(recipe: Recipe) -> dict[str, Any]:
    """A recipe as `config.json` holds it. `max_lag` stands there only if it is set, so that a recipe from before it
    existed keeps its hash, and its runs can be resumed."""
    table = recipe.model_dump(mode="json")
    if not recipe.rollout.max_lag:
        del table["rollout"]["max_lag"]
    return table


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def nested(flat_table: dict[str, Any]) -> dict[str, Any]:
    """The reverse."""
    found: dict[str, Any] = {}
    for key, value in flat_table.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        found = merge(found, value)
    return found
