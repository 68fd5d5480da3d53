"""A run's `config.json`: its hash, and the changes that a resume may make to it."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gspo_cli.config import Recipe, flat, merge, nested
from gspo_cli.errors import GspoError, first_fault, nearest
from gspo_cli.recipe import parse_set
from gspo_cli.runlog.log import config_text
from gspo_cli.runlog.strict_json import read_object
from gspo_cli.training.state.checkpoint_folder import list_checkpoints

MAY_CHANGE = ("train.steps", "checkpoint.", "eval.", "guards.", "rollout.store", "rollout.keep_newest",
              "rollout.deadline_s", "rollout.kv_budget_gb", "rollout.vllm.url", "rollout.vllm.concurrency",
              "model.device", "model.threads", "train.divide")  # fmt: skip
"""Keys that a resume may change at all; any other would make the run two experiments in one log."""


def config_hash(recipe: Recipe) -> str:
    """sha256 of a recipe without its name; the log's first line follows from it."""
    return _hash(recipe.model_dump(mode="json"))


def _hash(config: dict[str, Any]) -> str:
    return hashlib.sha256(config_text(config).encode()).hexdigest()


def parse_config(config: dict[str, Any]) -> Recipe:
    """Errors: GspoError for a table that is not a recipe of this version."""
    try:
        return Recipe.model_validate(config)
    except ValidationError as error:
        raise GspoError(
            "config.json is not a recipe of this version",
            str(error.errors(include_url=False)[0]["msg"]),
            "resume with the version that wrote it (run.json names it)",
        ) from error


def read_config(run: Path) -> Recipe:
    """The recipe of a run's folder. Errors: GspoError when it is missing, or not a recipe of this version."""
    return parse_config(read_object(run / "config.json"))


def overrides(steps: int | None, sets: list[str]) -> dict[str, Any]:
    """The command line's changes to the run's recipe, as a table."""
    table: dict[str, Any] = {} if steps is None else {"train": {"steps": steps}}
    for assignment in sets:
        table = merge(table, parse_set(assignment).table)
    return table


def check_changes(run: Path, overrides: dict[str, Any], allowed: Sequence[str]) -> None:
    """`apply_overrides` with the newest checkpoint of a run, which nobody has verified yet; nothing where its state
    cannot be read. Errors: as there."""
    for checkpoint in list_checkpoints(run / "checkpoints")[-1:]:
        try:
            earlier = dict(read_object(checkpoint / "state.json")["changes"])
            config, expected = read_object(run / "config.json"), str(read_object(run / "run.json")["config_sha256"])
        except (GspoError, LookupError, TypeError, ValueError):
            return  # the resume says what is wrong with them
        apply_overrides(config, earlier, overrides, allowed, expected)


def apply_overrides(
    config: dict[str, Any],
    earlier: dict[str, Any],
    overrides: dict[str, Any],
    allowed: Sequence[str],
    expected_hash: str,
) -> tuple[Recipe, dict[str, Any]]:
    """The run's recipe with the changes of earlier resumes and the overrides of this one; and all changes together.

    Errors: GspoError with every difference that was not allowed, and for a `config.json` that was edited.
    """
    if _hash(config) != expected_hash:  # as it was written: keys that came since then have their defaults
        raise GspoError(
            "config.json is not the recipe that the run was started with",
            "its sha256 differs from the one in run.json",
            "restore it; make changes with --set and --allow-change",
        )
    table = parse_config(config).model_dump(mode="json")
    current = flat(table) | earlier
    try:
        wanted = Recipe.model_validate(merge(merge(table, nested(earlier)), overrides))
    except ValidationError as error:
        raise GspoError(first_fault(error), "the changed recipe is not valid", "correct --set") from error
    if unknown := [key for key in allowed if key != "plugins" and key not in current]:
        raise GspoError(
            f"--allow-change {unknown[0]}", "no recipe has that key", nearest(unknown[0], current, "leave it out")
        )
    changed = {k: v for k, v in flat(wanted.model_dump(mode="json")).items() if v != current.get(k)}
    refused = [key for key in changed if key not in allowed or not key.startswith(MAY_CHANGE)]
    if refused:
        never = [key for key in refused if not key.startswith(MAY_CHANGE)]
        raise GspoError(
            "the recipe differs from the run's: "
            + "; ".join(f"{key} = {current.get(key)!r} -> {changed[key]!r}" for key in refused),
            f"{never[0]} is part of the experiment" if never else "a change in the middle of a run must be intended",
            "start another run with it" if never else " ".join(f"--allow-change {key}" for key in refused),
        )
    return wanted, earlier | changed
