"""Train the runs of a study: one after another, several at once, or on a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gspo_cli.cli import console
from gspo_cli.cli.views.comparison import show_outcome
from gspo_cli.cli.views.training import StudyView, TrainView
from gspo_cli.errors import ExitCode, GspoError, quoted

if TYPE_CHECKING:
    from gspo_cli.distributed import Ranks
    from gspo_cli.launch.local import TrainingJob
    from gspo_cli.launch.ray_cluster import RayCluster
    from gspo_cli.training.study.arms import Run
    from gspo_cli.training.study.plans import StudyPlan


def train_one_by_one(
    runs: list[Run], plan: StudyPlan, starts: dict[int, Path], study: Path, as_json: bool, ranks: Ranks, view: TrainView
) -> int:
    """Train the runs in this process, each from its seed's start model, and return how many a training guard stopped; a
    single one raises instead."""
    from gspo_cli.training.run import execute

    stopped = 0
    with name_rest(study, [run.name for run in runs]), view:
        for run in runs:
            view.start_run(run.name)
            try:
                with report_run_folder(study / run.name):
                    execute(run, starts[run.recipe.seed], study, plan, sys.argv, view, ranks)
            except GspoError as error:
                if error.code != ExitCode.GUARD or len(runs) == 1:
                    raise
                console.note(str(error))
                stopped += 1
                continue
            report_run(view, study / run.name, run.arm, run.recipe.seed, as_json and ranks.is_main)
    return stopped


def as_job(run: Run, plan: StudyPlan, start: Path, study: Path, on_ray: bool, **more: Any) -> TrainingJob:
    """A run as the request that `gspo_cli.training.worker` reads."""
    from gspo_cli.launch.local import TrainingJob
    from gspo_cli.models.remote_code import allowed_code
    from gspo_cli.runlog.provenance import PACKAGE, package_sha256

    request = {
        "package": {"path": str(PACKAGE), "sha256": package_sha256()},
        "plan": plan.as_table(), "start": str(start), "study": str(study), "argv": sys.argv,
        "trust_remote_code": allowed_code(), "arm": run.arm, "seed": run.recipe.seed,
    }  # fmt: skip
    return TrainingJob(run.name, request | ({"folder": str(Path.cwd())} if on_ray else {}) | more)


def train_jobs(
    jobs: list[TrainingJob], at_once: int, steps: int, path: Path, as_json: bool, cluster: RayCluster | None
) -> int:
    """Train `at_once` jobs at a time, or all on the cluster, which is left at the end; return how many a guard stopped.

    All runs are shown meanwhile, the finished ones printed as JSON if asked. If interrupted, the command that resumes
    `path` is printed. Errors: GspoError of a run that failed for another reason.
    """
    from gspo_cli.launch import local, ray_cluster

    try:
        with StudyView([job.name for job in jobs], steps) as view:
            if cluster is None:
                codes = local.run_jobs(jobs, at_once, view)
            else:
                codes = ray_cluster.run_on_cluster(jobs, cluster, view)
    except (KeyboardInterrupt, SystemExit):
        how = f"--jobs {at_once}" if cluster is None else "--launcher ray"
        console.note(f"the running runs were saved; to resume: gspo train --resume {quoted(path)} {how}")
        raise
    finally:
        if cluster is not None:
            cluster.close()
    for job in jobs if as_json else ():
        if codes[job.name] == ExitCode.OK:
            run = Path(job.request["study"]) / job.name
            console.print_json({"run": str(run), "arm": job.request["arm"], "seed": job.request["seed"]})
    return sum(code != ExitCode.OK for code in codes.values())


def past_guard(train: Callable[[], None]) -> bool:
    """Train some runs, and return whether a guard stopped one of them. Errors: whatever else stops them."""
    try:
        train()
    except typer.Exit as end:
        if end.exit_code != ExitCode.GUARD:
            raise
        return True
    except GspoError as error:
        if error.code != ExitCode.GUARD:
            raise
        console.note(str(error))
        return True
    return False


@contextmanager
def name_rest(study: Path, runs: list[str]) -> Iterator[None]:
    """If training is cut off, name the runs of the study that are not complete, and the command that finishes all."""
    try:
        yield
    except (KeyboardInterrupt, GspoError) as error:
        from gspo_cli.training.state.resume import is_complete

        refused = isinstance(error, GspoError) and error.code == ExitCode.USER_ERROR
        if len(runs) > 1 and study.exists() and not refused:
            rest = ", ".join(run for run in runs if not is_complete(study / run))
            console.note(f"the study is unfinished: {rest}; to train them all: gspo train --resume {quoted(study)}")
            if isinstance(error, GspoError) and error.code > ExitCode.STORAGE:  # a signal
                error.hint = f"gspo train --resume {quoted(study)} goes on with the whole study"
        raise


@contextmanager
def report_run_folder(run: Path) -> Iterator[None]:
    """Name the run's folder if its training stops early."""
    try:
        yield
    except (KeyboardInterrupt, GspoError) as error:
        word = "interrupted" if isinstance(error, KeyboardInterrupt) else "stopped"
        refused = isinstance(error, GspoError) and error.code == ExitCode.USER_ERROR
        if run.exists() and not refused:  # before anything was trained
            console.note(f"{word}; the log up to the last complete rollout batch is in {run}")
        raise


def report_run(view: TrainView, run: Path, arm: str, seed: int, as_json: bool) -> None:
    """Print a finished run's last line, and its JSON record if asked."""
    last = view.rows[-1] if view.rows else ["nothing left to do:", "unchanged"]
    view.end_run(f"run {run}: {last[0]} reward {last[1]}")
    if as_json:
        console.print_json({"run": str(run), "arm": arm, "seed": seed})


def report_study(study: Path, stopped: int, as_json: bool, result: bool = True) -> None:
    """Print the study's result, and its folder. Exit code 4 if a training guard stopped some of its runs."""
    if result and not console.settings["quiet"]:
        try:
            show_outcome(study)
        except GspoError as error:  # of another run in the study: this training is done
            console.note(f"no result: {error.message}: {error.why}")
    if not as_json:
        console.out.print(str(study))
    if stopped:
        console.note(f"a guard stopped {console.plural(stopped, 'run')}; stopped runs stay in the study and count")
        raise typer.Exit(ExitCode.GUARD)
