"""What `--launcher ray` makes of a study."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gspo_cli.cli import console

if TYPE_CHECKING:
    from gspo_cli.launch.ray_cluster import RayCluster
    from gspo_cli.training.plans import Plan
    from gspo_cli.training.study import Run


def train_on(cluster: RayCluster, runs: list[Run], asked: Plan, start: Path, study: Path, as_json: bool) -> int:
    """Trains the runs where the cluster has room; how many a training guard stopped.

    Errors: GspoError of a run that failed otherwise.
    """
    from gspo_cli.cli.study_options import as_jobs, shown
    from gspo_cli.launch.schedule import run_all
    from gspo_cli.training.plans import record_plan

    record_plan(study, asked)  # now: a run may not begin for hours
    todo = [replace(job, asked=job.asked | {"folder": str(Path.cwd())}) for job in as_jobs(runs, asked, start, study)]
    with saying_how_to_go_on(cluster, study):
        return shown(runs, asked.recipe.train.steps, study, as_json, lambda tell: run_all(todo, cluster, tell))


def go_on_with_ray(
    path: Path, gpus: int | None, steps: int | None, sets: list[str], allowed: list[str], as_json: bool
) -> int:
    """Finishes the runs of a study, or one of them; those that are complete are left alone. How many a training guard
    stopped.

    Errors: GspoError for a folder that is neither, and of a run that failed otherwise.
    """
    from gspo_cli.cli.bars import ColdStartBar
    from gspo_cli.cli.study_options import as_jobs, shown
    from gspo_cli.launch.job import Job
    from gspo_cli.launch.ray_cluster import connect
    from gspo_cli.launch.schedule import run_all
    from gspo_cli.models.torch_setup import prepare_torch
    from gspo_cli.training.changes import overrides
    from gspo_cli.training.cold_start import start_model
    from gspo_cli.training.plans import with_plans

    changes, found = overrides(steps, sets), with_plans(path)
    planned, study = [(one.run, one.plan) for one in found if one.run and one.plan], found[0].folder.parent
    cluster = connect(gpus, max(plan.recipe.model.threads or 1 for _, plan in planned))
    todo: list[Job] = []
    for run, plan in planned:
        prepare_torch(plan.recipe.model.threads)
        more = {"folder": str(Path.cwd()), "go_on": True, "changes": changes, "allowed": allowed}
        (job,) = as_jobs([run], plan, start_model(run.recipe, ColdStartBar()), study)
        todo.append(replace(job, asked=job.asked | more))
    longest = changes.get("train", {}).get("steps") or max(plan.recipe.train.steps for _, plan in planned)
    with saying_how_to_go_on(cluster, path):
        return shown([run for run, _ in planned], longest, study, as_json, lambda tell: run_all(todo, cluster, tell))


@contextmanager
def saying_how_to_go_on(cluster: RayCluster, path: Path) -> Iterator[None]:
    """Leaves the cluster in the end; names the command to go on with when a study or run is interrupted."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        console.note(f"the runs in progress were saved; gspo train --resume {path} --launcher ray goes on with all")
        raise
    finally:
        cluster.close()
