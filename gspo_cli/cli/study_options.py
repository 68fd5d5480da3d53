"""What `--grid`, `--tuned` and `--jobs` make of a study."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo_cli.cli import console
from gspo_cli.errors import GspoError

if TYPE_CHECKING:
    from gspo_cli.config import Recipe
    from gspo_cli.launch.job import Job
    from gspo_cli.training.plans import Plan
    from gspo_cli.training.study import Run

Trials = dict[str, Any]
OnEvent = Callable[[str, dict[str, Any]], None]


def prepare_arms(
    recipe: Recipe, arms: list[str], seeds: list[int], grid: list[str], tuned: Path | None
) -> tuple[Recipe, list[str], Trials]:
    """The recipe and arms with a grid's trials, or with what earlier trials chose; and the trials.

    Errors: GspoError for both at once, and for what the grid or the trials say.
    """
    from gspo_cli.training.tuning import expand, parse_grid, with_tuning

    if grid and tuned:
        raise GspoError(
            "--grid and --tuned together", "one tries settings, the other uses what was chosen", "one of them"
        )
    if tuned:
        return with_tuning(recipe, arms, seeds, tuned), arms, {}
    return expand(recipe, arms, parse_grid(grid)) if grid else (recipe, arms, {})


def with_threads(recipe: Recipe, threads: int) -> Recipe:
    """The recipe with so many CPU threads a run, which stand in its configuration like any other key."""
    changed = recipe.model_copy(update={"model": recipe.model.model_copy(update={"threads": threads})})
    changed._sources = recipe._sources
    return changed


def train_at_once(runs: list[Run], jobs: int, asked: Plan, start: Path, study: Path, as_json: bool) -> int:
    """Trains the runs in processes of their own; how many a training guard stopped.

    Errors: GspoError of a run that failed otherwise.
    """
    from gspo_cli.launch.local import run_all

    todo = as_jobs(runs, asked, start, study)
    return shown(runs, asked.recipe.train.steps, study, as_json, lambda on_event: run_all(todo, jobs, on_event))


def as_jobs(runs: list[Run], asked: Plan, start: Path, study: Path) -> list[Job]:
    """The runs as `gspo_cli.training.child` wants them."""
    from gspo_cli.launch.job import Job
    from gspo_cli.models.foreign_code import allowed_code

    shared = {"plan": asked.as_table(), "start": str(start), "study": str(study), "argv": sys.argv,
              "trust_remote_code": allowed_code()}  # fmt: skip
    return [Job(run.name, shared | {"arm": run.arm, "seed": run.recipe.seed}) for run in runs]


def shown(runs: list[Run], steps: int, study: Path, as_json: bool, train: Callable[[OnEvent], dict[str, int]]) -> int:
    """Trains with a table of all runs, and prints those that are done as JSON if asked; how many a guard stopped."""
    from gspo_cli.cli.live_study import StudyView

    with StudyView([run.name for run in runs], steps) as view:
        codes = train(view.event)
    if as_json:
        for run in runs:
            if codes[run.name] == 0:
                console.print_json({"run": str(study / run.name), "arm": run.arm, "seed": run.recipe.seed})
    return sum(code != 0 for code in codes.values())


def finish_tuning(study: Path, metric: str, trials: Trials, as_json: bool) -> None:
    """Chooses each arm's best trial, keeps it with its cost in the study, and prints it."""
    from gspo_cli.report.folders import read_study
    from gspo_cli.report.trials import choose
    from gspo_cli.runlog.fs import write_text
    from gspo_cli.runlog.seal import seal_files
    from gspo_cli.training.tuning import FILE

    arms = choose(read_study(study), metric, trials)
    found = {"metric": metric, "arms": arms}
    write_text(study / FILE, json.dumps(found, indent=1, sort_keys=True, allow_nan=False) + "\n")
    seal_files(study, [study / FILE])
    if as_json:
        console.print_json({"tuning": found})
        return
    for arm, own in arms.items():
        keys = ", ".join(f"{key} = {value}" for key, value in own["chosen"].items())
        scores = ", ".join("n/a" if s["score"] is None else f"{s['score']:.4g}" for s in own["scores"])
        console.out.print(f"{arm}: {keys} ({metric} of {own['trials']} trials, best first: {scores})")
    console.note(f"train with it, on other seeds: gspo train ... --tuned {study} --seeds 0-7")
