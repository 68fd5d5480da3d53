"""`gspo train --resume`: finish the runs of a study, or one run. Complete runs are left alone."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo_cli.cli import console
from gspo_cli.cli.train.execute import as_job, report_run, report_run_folder, report_study, train_jobs
from gspo_cli.cli.views.training import ColdStartBar, TrainView

if TYPE_CHECKING:
    from gspo_cli.config import Recipe
    from gspo_cli.distributed import Ranks
    from gspo_cli.launch.local import TrainingJob


def resume_one_by_one(
    path: Path, changes: dict[str, Any], allowed: list[str], as_json: bool, ranks: Ranks,
    show_samples: bool | None = None,
) -> None:  # fmt: skip
    """Finish the runs in this process, one after another."""
    from gspo_cli.models.device import prepare_torch
    from gspo_cli.runlog.strict_json import read_object
    from gspo_cli.tasks.scoring import show_slow_rewards
    from gspo_cli.training import run as training
    from gspo_cli.training.cold_start import start_model
    from gspo_cli.training.state.resume import has_begun
    from gspo_cli.training.state.run_config import read_config
    from gspo_cli.training.study.plans import runs_to_resume

    def start_of(recipe: Recipe) -> Path:
        return Path(ranks.broadcast(lambda: str(start_model(recipe, ColdStartBar()))))

    show_slow_rewards(console.note)
    planned = runs_to_resume(path)
    with TrainView(0, len(planned), show_samples) as view:
        for one in planned:
            if ranks.broadcast(partial(_is_finished, one.folder, changes)):
                continue
            begun = ranks.broadcast(partial(has_begun, one.folder))
            recipe = read_config(one.folder) if begun or one.run is None else one.run.recipe
            prepare_torch(recipe.model.threads, recipe.model.float32_matmul)
            view.start_run(one.folder.name, changes.get("train", {}).get("steps", recipe.train.steps))
            with report_run_folder(one.folder):
                if begun or one.run is None or one.plan is None:
                    training.resume(one.folder, start_of, changes, allowed, sys.argv, view, ranks)
                else:
                    console.note(f"{one.folder} had not reached its first checkpoint: it starts from the beginning")
                    study, start = one.folder.parent, start_of(recipe)
                    training.execute(one.run, start, study, one.plan, sys.argv, view, ranks, changes, allowed)
            arm = str(read_object(one.folder / "run.json")["arm"])
            report_run(view, one.folder, arm, recipe.seed, as_json and ranks.is_main)
    if ranks.is_main:
        report_study(path, 0, as_json)


def resume_at_once(
    path: Path, at_once: int, changes: dict[str, Any], allowed: list[str], as_json: bool, on_ray: bool = False,
    gpus: int | None = None,
) -> None:  # fmt: skip
    """Finish the runs in worker processes: several at once, or on a Ray cluster.

    Errors: GspoError for a folder without a study, and of a run that failed.
    """
    from gspo_cli.launch.ray_cluster import connect
    from gspo_cli.models.device import prepare_torch
    from gspo_cli.training.cold_start import start_model
    from gspo_cli.training.study.plans import runs_with_plans

    found = runs_with_plans(path)
    threads = max(one.plan.recipe.model.threads or 1 for one in found if one.plan)
    cluster = connect(gpus, threads) if on_ray else None
    jobs, longest = list["TrainingJob"](), 0
    for one in found:
        if (on_ray or not _is_finished(one.folder, changes)) and one.run and one.plan:
            prepare_torch(one.plan.recipe.model.threads, one.plan.recipe.model.float32_matmul)
            start, resumed = start_model(one.run.recipe, ColdStartBar()), {"changes": changes, "allowed": allowed}
            jobs.append(as_job(one.run, one.plan, start, one.folder.parent, on_ray, go_on=True, **resumed))
            longest = max(longest, changes.get("train", {}).get("steps") or one.plan.recipe.train.steps)
    stopped = train_jobs(jobs, at_once, longest, path, as_json, cluster) if jobs else 0
    report_study(path, stopped, as_json)


def _is_finished(run: Path, changes: dict[str, Any]) -> bool:
    """Whether nothing is left to train, which is then recorded and said."""
    from gspo_cli.training.state.resume import finish, has_begun, is_complete

    if changes or not has_begun(run) or not is_complete(run):
        return False
    finish(run)
    console.note(f"run {run} is complete")
    return True
