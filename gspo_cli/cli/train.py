"""`gspo train` and `gspo cold-start`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gspo_cli.cli import completion, console
from gspo_cli.cli.options import (
    RECIPE,
    JsonLines,
    Launcher,
    Model,
    Name,
    Out,
    Set,
    TrustCode,
    check_launcher,
    parse_seeds,
)
from gspo_cli.errors import ExitCode, GspoError

if TYPE_CHECKING:
    from gspo_cli.config import Recipe
    from gspo_cli.ranks import Ranks
    from gspo_cli.training.plans import Plan
    from gspo_cli.training.study import Run


@console.command
def train(
    recipe: RECIPE = "quickstart",
    algo: Annotated[
        str | None,
        typer.Option(
            help="Arms, comma-separated: algorithms or labels of [arms].", autocompletion=completion.algorithms
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="One seed.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several: 0-7 or 0,3,5.")] = None,
    steps: Annotated[int | None, typer.Option(help="Rollout batches.")] = None,
    model: Model = None,
    out: Out = Path("results"),
    name: Name = None,
    set_: Set = None,
    grid: Annotated[
        list[str] | None, typer.Option(help="Tune every arm alike: --grid algo.lr=5e-5,1e-4, on --seeds of its own.")
    ] = None,
    tuned: Annotated[Path | None, typer.Option(help="The study that --grid made: train with what it chose.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once; they share cores or GPUs.")] = 1,
    launcher: Annotated[
        Launcher, typer.Option(help="Where runs go: this machine, processes that share each run, or a Ray cluster.")
    ] = Launcher.LOCAL,
    nproc: Annotated[int | None, typer.Option(min=1, help="With --launcher torchrun: processes of each run.")] = None,
    gpus_per_run: Annotated[
        int | None,
        typer.Option(min=0, help="With --launcher ray: GPUs of each run.", show_default="1 where the cluster has any"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Plan only: memory of each GPU and time of each phase. Writes nothing.")
    ] = False,
    overwrite: Annotated[bool, typer.Option(help="Delete runs of the same name first.")] = False,
    resume: Annotated[Path | None, typer.Option(help="Go on with a run or a study where it stopped.")] = None,
    allow_change: Annotated[
        list[str] | None, typer.Option(help="With --resume: a key of the recipe that --set may change.")
    ] = None,
    trust_remote_code: TrustCode = None,
    json_: JsonLines = False,
) -> None:
    """Train with one or several algorithms from the same start, on the same data in the same order.

    Examples:

        gspo train

        gspo train --algo grpo,gspo --seeds 0-7 --jobs 2

        gspo train --algo grpo,gspo --grid algo.lr=5e-5,1e-4 --seeds 100-102 --name tuning

        gspo train --algo grpo,gspo --tuned results/tuning --seeds 0-7

        gspo train --algo grpo,gspo --seeds 0-7 --launcher ray --gpus-per-run 1 --out /shared/results

        gspo train --launcher torchrun --nproc 8 --model Qwen/Qwen3-4B

        gspo train real/qwen3-30b-a3b-8xh200 --dry-run --set cluster.gpu=h100

        gspo train --resume results/my-study
    """
    from gspo_cli.launch.torchrun import is_rank, launch, ranks_of_this_program
    from gspo_cli.models.foreign_code import allow_code

    check_launcher(launcher, jobs, nproc, gpus_per_run, is_rank())
    allow_code(trust_remote_code)
    if launcher is Launcher.TORCHRUN and not is_rank() and not dry_run:
        raise typer.Exit(launch(nproc or 1))
    ranks = ranks_of_this_program()
    console.settings["quiet"] |= not ranks.first
    if resume is not None:
        refuse_with_resume({"--algo": algo, "--seed": seed, "--seeds": seeds, "--model": model, "--name": name})
        refuse_with_resume({"--overwrite": overwrite, "--dry-run": dry_run})
        if launcher is Launcher.RAY:
            from gspo_cli.cli.on_cluster import go_on_with_ray

            return end(
                resume, go_on_with_ray(resume, gpus_per_run, steps, set_ or [], allow_change or [], json_), json_
            )
        return go_on(resume, steps, set_ or [], allow_change or [], json_, ranks)
    if allow_change:
        raise GspoError("--allow-change without --resume", "it is about a run that goes on", "add --resume PATH")
    from gspo_cli import recipe as recipes
    from gspo_cli.cli.live import ColdStartBar
    from gspo_cli.cli.on_cluster import train_on
    from gspo_cli.cli.study_options import finish_tuning, prepare_arms, train_at_once, with_threads
    from gspo_cli.launch.local import threads_each
    from gspo_cli.launch.ray_cluster import connect
    from gspo_cli.runlog.folder import check_free, make_writable, study_folder

    options: dict[str, Any] = {}
    if steps is not None:
        options["train"] = {"steps": steps}
    if model is not None:
        options |= {"model": {"path": model, "tiny": None}, "cold_start": None}
    loaded = recipes.load(recipe, options, set_ or [])
    chosen = parse_seeds(seed, seeds, loaded.seed)
    folder = Path(ranks.from_first(lambda: str(study_folder(out, name, loaded.name))))  # its name may hold the time

    from gspo_cli.evals.during_training import load_benchmarks
    from gspo_cli.models.torch_setup import prepare_torch
    from gspo_cli.plugins import used_folders
    from gspo_cli.rollout.collect import PromptStream
    from gspo_cli.tasks import make_task
    from gspo_cli.tasks.contract import Noting
    from gspo_cli.training.checks import check_ranks, check_routers
    from gspo_cli.training.cold_start import start_model
    from gspo_cli.training.plans import Plan
    from gspo_cli.training.study import plan

    arms = [a.strip() for a in algo.split(",") if a.strip()] if algo else [*loaded.arms] or [loaded.algo.name]
    if not arms:
        raise GspoError(f"--algo {algo} names no arm", "it holds commas only", "e.g. --algo grpo,gspo")
    if len(set(arms)) != len(arms):
        raise GspoError(f"--algo {algo} names an arm twice", "an arm is trained once a seed", "name each arm once")
    loaded = loaded.model_copy(update={"name": folder.name})
    loaded, arms, trials = prepare_arms(loaded, arms, chosen, grid or [], tuned)
    if jobs > 1:
        loaded = with_threads(loaded, threads_each(jobs, loaded.model.threads))
    elif launcher is Launcher.RAY:
        loaded = with_threads(loaded, loaded.model.threads or 1)
    runs = plan(loaded, arms, chosen, here=not dry_run)
    if dry_run:
        from gspo_cli.cli.plan_view import show_plan

        return show_plan(runs, folder, json_)
    task = make_task(loaded.task)
    problems = task.problems(loaded.task.split)
    for note in task.notes if isinstance(task, Noting) else ():
        console.note(f"warning: {note}")
    PromptStream(problems, loaded.rollout.prompts, seed=0)  # refuses too few problems before anything is built
    load_benchmarks(loaded.eval)
    check_ranks(runs, ranks)
    cluster = connect(gpus_per_run, loaded.model.threads or 1) if launcher is Launcher.RAY else None
    prepare_torch(loaded.model.threads)

    def prepare() -> str:
        check_free(folder, [r.name for r in runs], overwrite)
        make_writable(out)
        return str(start_model(loaded, ColdStartBar()))

    start = Path(ranks.from_first(prepare))
    check_routers([run.recipe for run in runs], start)
    asked = Plan(loaded, arms, chosen, recipes.find(recipe).read_text(encoding="utf-8"), used_folders())
    console.note(
        f"study {folder}: {len(runs)} run{'s' if len(runs) > 1 else ''} of {loaded.train.steps} rollout batches"
    )
    if cluster is not None:
        stopped = train_on(cluster, runs, asked, start, folder, json_)
    elif jobs > 1:
        stopped = train_at_once(runs, jobs, asked, start, folder, json_)
    else:
        stopped = train_in_turn(runs, asked, start, folder, json_, ranks)
    if not ranks.first:
        return
    if trials:
        finish_tuning(folder, loaded.report.metric, trials, json_)
    end(folder, stopped, json_)


def end(study: Path, stopped: int, json_: bool) -> None:
    """Says where the study is, and with exit code 4 how many of its runs a training guard stopped."""
    if not json_:
        console.out.print(str(study))
    if stopped:
        console.note(f"{stopped} of the runs were stopped by a guard; they stay in the study and count")
        raise typer.Exit(ExitCode.GUARD)


def train_in_turn(runs: list[Run], asked: Plan, start: Path, study: Path, json_: bool, ranks: Ranks) -> int:
    """Trains the runs one after the other; how many of several a training guard stopped: a result, which counts."""
    from gspo_cli.cli.live import TrainView
    from gspo_cli.training.run import View, execute

    stopped = 0
    with TrainView(asked.recipe.train.steps, len(runs)) as view:
        for run in runs:
            view.start_run(run.name)
            try:
                with saying_where(study / run.name):
                    execute(run, start, study, asked, sys.argv, View(view.step, view.preflight, console.note), ranks)
            except GspoError as error:
                if error.code != ExitCode.GUARD or len(runs) == 1:
                    raise
                console.note(str(error))
                stopped += 1
                continue
            finished(view, study / run.name, run.arm, run.recipe.seed, json_ and ranks.first)
    return stopped


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
    from gspo_cli.cli.live import ColdStartBar, TrainView
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


@contextmanager
def saying_where(run: Path) -> Iterator[None]:
    """Names the run's folder when its training is stopped."""
    try:
        yield
    except (KeyboardInterrupt, GspoError) as error:
        word = "interrupted" if isinstance(error, KeyboardInterrupt) else "stopped"
        if run.exists():
            console.note(f"{word}; the log up to the last whole rollout batch is in {run}")
        raise


def finished(view: Any, run: Path, arm: str, seed: int, json_: bool) -> None:
    """A run is done: its last line, and its record on stdout."""
    last = view.rows[-1] if view.rows else ["nothing left to do:", "unchanged"]
    view.end_run(f"run {run}: {last[0]} reward {last[1]}")
    if json_:
        console.print_json({"run": str(run), "arm": arm, "seed": seed})


@console.command
def cold_start(
    recipe: RECIPE = "quickstart",
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("cold-start"),
    set_: Set = None,
    trust_remote_code: TrustCode = None,
) -> None:
    """Build the supervised start model of a recipe on its own, from the task's demonstrations or one's own file.

    Examples:

        gspo cold-start --out my-start

        gspo cold-start quickstart --set cold_start.path=demos.jsonl --out my-start
    """
    from gspo_cli import recipe as recipes
    from gspo_cli.cli.live import ColdStartBar

    loaded = recipes.load(recipe, {}, set_ or [])
    if loaded.cold_start is None:
        raise GspoError(f"recipe {recipe} has no [cold_start]", "there is nothing to build", "add the table")
    if out.exists():
        raise GspoError(f"{out} exists", "a model folder is not overwritten", "choose another --out")

    from gspo_cli.models.foreign_code import allow_code
    from gspo_cli.models.torch_setup import prepare_torch
    from gspo_cli.training.cold_start import build

    allow_code(trust_remote_code)
    prepare_torch(loaded.model.threads)
    build(loaded, out, ColdStartBar())
    console.out.print(str(out))
