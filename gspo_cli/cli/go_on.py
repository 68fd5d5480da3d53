"""`gspo train --resume`: what was begun is finished."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo_cli.cli import console
from gspo_cli.cli.endings import finished, saying_where
from gspo_cli.errors import GspoError

if TYPE_CHECKING:
    from gspo_cli.config import Recipe
    from gspo_cli.ranks import Ranks


def refuse_with_resume(given: dict[str, Any]) -> None:
    """Errors: GspoError for options that belong to a new study."""
    wrong = [option for option, value in given.items() if value]
    if wrong:
        raise GspoError(
            f"{wrong[0]} with --resume",
            "a run goes on with the recipe, arm and seed that it began with",
            f"remove {' and '.join(wrong)}, or start another study without --resume",
        )


def go_on(path: Path, steps: int | None, sets: list[str], allowed: list[str], json_: bool, ranks: Ranks) -> None:
    """Finishes the runs of a study or one run; those that are complete are left alone."""
    from gspo_cli.cli.bars import ColdStartBar
    from gspo_cli.cli.live import TrainView
    from gspo_cli.models.torch_setup import prepare_torch
    from gspo_cli.runlog.read import read_object
    from gspo_cli.training import run as training
    from gspo_cli.training.changes import overrides, read_config
    from gspo_cli.training.cold_start import start_model
    from gspo_cli.training.plans import to_resume
    from gspo_cli.training.resume import finish, has_begun, is_complete

    def state_of(run: Path) -> list[bool]:
        return [has_begun(run), is_complete(run)]

    def start_of(recipe: Recipe) -> Path:
        return Path(ranks.from_first(lambda: str(start_model(recipe, ColdStartBar()))))

    changes = overrides(steps, sets)
    planned = to_resume(path)
    with TrainView(0, len(planned)) as view:
        for one in planned:
            begun, complete = ranks.from_first(partial(state_of, one.folder))
            if begun and complete and not changes:
                if ranks.first:
                    finish(one.folder)
                console.note(f"run {one.folder} is complete")
                continue
            recipe = read_config(one.folder) if begun or one.run is None else one.run.recipe
            prepare_torch(recipe.model.threads)
            view.start_run(one.folder.name, changes.get("train", {}).get("steps", recipe.train.steps))
            shown = training.View(view.step, view.preflight, console.note)
            with saying_where(one.folder):
                if begun or one.run is None or one.plan is None:
                    training.resume(one.folder, start_of, changes, allowed, sys.argv, shown, ranks)
                else:
                    console.note(f"{one.folder} had not reached its first checkpoint: it starts from the beginning")
                    training.execute(one.run, start_of(recipe), one.folder.parent, one.plan, sys.argv, shown, ranks)
            arm = str(read_object(one.folder / "run.json")["arm"])
            finished(view, one.folder, arm, recipe.seed, json_ and ranks.first)
    if not json_ and ranks.first:
        console.out.print(str(path))
