"""`gspo train --sweep`: an ordinary study for each cell. All are planned before the first one trains."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gspo_cli.cli import console
from gspo_cli.cli.train.execute import past_guard
from gspo_cli.cli.train.new_study import StudyRequest, read_request, train_new_study
from gspo_cli.errors import ExitCode, GspoError

if TYPE_CHECKING:
    from gspo_cli.distributed import Ranks


def train_sweep(request: StudyRequest, ranks: Ranks) -> None:
    """Train every cell's study, or with `--dry-run` print how many runs they are and the plan of each.

    A run that a guard stops does not end the sweep. Exit code 4 at the end if there was one.
    Errors: GspoError for a cell that cannot be trained; nothing has been written then.
    """
    from gspo_cli.plugins import loaded_folders
    from gspo_cli.recipe import find, refuse_twice
    from gspo_cli.runlog.folder import check_free, study_folder
    from gspo_cli.training.study.arms import plan_runs
    from gspo_cli.training.study.plans import StudyPlan, record_plan
    from gspo_cli.training.study.sweep import parse_sweep, sweep_cells

    if request.grid:
        raise GspoError(
            "--grid and --sweep together",
            "each cell would end with its own choice, which no run of the sweep then uses",
            "tune first with --grid, then --sweep with --tuned; or one study of trials for each cell",
        )
    axes = parse_sweep(request.sweep)
    cells, whole = sweep_cells(axes), read_request(request)[0]
    refuse_twice(whole, axes, "--sweep")
    name = whole.name
    folder = Path(ranks.broadcast(lambda: str(study_folder(request.out, request.name, name))))
    sets = [text for text in request.sets if not text.startswith("name=")]  # the folder has that name
    requests = [replace(request, sweep=[], sets=[*sets, *cell.sets], out=folder, name=cell.name) for cell in cells]
    planned = []
    for one in requests:
        recipe, arms, seeds = read_request(one)
        recipe = recipe.model_copy(update={"name": str(one.name)})
        planned.append((recipe, arms, seeds, plan_runs(recipe, arms, seeds, here=not request.dry_run)))
    num_runs = sum(len(runs) for *_, runs in planned)
    console.note(f"sweep {folder}: {len(cells)} cells, {console.plural(num_runs, 'run')}")
    for cell, (*_, runs) in zip(cells, planned, strict=True):
        console.note(f"  {cell.name}: {console.plural(len(runs), 'run')}, {' '.join(cell.sets)}")
    if ranks.is_main and not request.dry_run:
        for cell, (*_, runs) in zip(cells, planned, strict=True):
            check_free(folder / cell.name, [run.name for run in runs], request.overwrite)
        text = find(request.recipe).read_text(encoding="utf-8")
        for cell, (recipe, arms, seeds, _) in zip(cells, planned, strict=True):  # a resume trains what did not begin
            record_plan(folder / cell.name, StudyPlan(recipe, arms, seeds, text, loaded_folders()))
    stopped = [past_guard(partial(train_new_study, one, ranks)) for one in requests]
    if ranks.is_main and not request.dry_run:
        console.note(f"the map: gspo report map {folder}")
    if any(stopped):
        raise typer.Exit(ExitCode.GUARD)
