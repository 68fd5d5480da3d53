"""`gspo train` and `gspo cold-start`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gspo_cli.cli import console
from gspo_cli.cli.options import RECIPE, Model, Name, Out, Set, parse_seeds
from gspo_cli.errors import ExitCode, GspoError


@console.command
def train(
    recipe: RECIPE = "quickstart",
    algo: Annotated[str | None, typer.Option(help="Arms, comma-separated: algorithms or labels of [arms].")] = None,
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
    overwrite: Annotated[bool, typer.Option(help="Delete runs of the same name first.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object a run on stdout.")] = False,
) -> None:
    """Train with one or several algorithms from the same start, on the same data in the same order.

    Examples:

        gspo train

        gspo train --algo grpo,gspo --seeds 0-7 --jobs 2

        gspo train --algo grpo,gspo --grid algo.lr=5e-5,1e-4 --seeds 100-102 --name tuning

        gspo train --algo grpo,gspo --tuned results/tuning --seeds 0-7
    """
    from gspo_cli import recipe as recipes
    from gspo_cli.cli.live import ColdStartBar, TrainView
    from gspo_cli.cli.study_options import finish_tuning, prepare_arms, share_threads, train_at_once
    from gspo_cli.runlog.folder import check_free, make_writable, study_folder

    options: dict[str, Any] = {}
    if steps is not None:
        options["train"] = {"steps": steps}
    if model is not None:
        options |= {"model": {"path": model, "tiny": None}, "cold_start": None}
    loaded = recipes.load(recipe, options, set_ or [])
    chosen = parse_seeds(seed, seeds, loaded.seed)
    folder = study_folder(out, name, loaded.name)

    from gspo_cli.evals.during_training import load_benchmarks
    from gspo_cli.models.torch_setup import prepare_torch
    from gspo_cli.rollout.collect import PromptStream
    from gspo_cli.tasks import make_task
    from gspo_cli.tasks.contract import Noting
    from gspo_cli.training.checks import check_routers
    from gspo_cli.training.cold_start import start_model
    from gspo_cli.training.run import View, execute
    from gspo_cli.training.study import plan

    arms = [a.strip() for a in algo.split(",") if a.strip()] if algo else [*loaded.arms] or [loaded.algo.name]
    if not arms:
        raise GspoError(f"--algo {algo} names no arm", "it holds commas only", "e.g. --algo grpo,gspo")
    if len(set(arms)) != len(arms):
        raise GspoError(f"--algo {algo} names an arm twice", "an arm is trained once a seed", "name each arm once")
    loaded = loaded.model_copy(update={"name": folder.name})
    loaded, arms, trials = prepare_arms(loaded, arms, chosen, grid or [], tuned)
    runs = plan(share_threads(loaded, jobs) if jobs > 1 else loaded, arms, chosen)
    task = make_task(loaded.task)
    problems = task.problems(loaded.task.split)
    for note in task.notes if isinstance(task, Noting) else ():
        console.note(f"warning: {note}")
    PromptStream(problems, loaded.rollout.prompts, seed=0)  # refuses too few problems before anything is built
    load_benchmarks(loaded.eval)
    check_free(folder, [r.name for r in runs], overwrite)
    make_writable(out)
    prepare_torch(loaded.model.threads)
    start = start_model(loaded, ColdStartBar())
    check_routers([run.recipe for run in runs], start)
    text = recipes.find(recipe).read_text(encoding="utf-8")
    console.note(
        f"study {folder}: {len(runs)} run{'s' if len(runs) > 1 else ''} of {loaded.train.steps} rollout batches"
    )
    stopped = 0
    if jobs > 1:
        stopped = train_at_once(runs, jobs, share_threads(loaded, jobs), start, folder, text, json_)
    else:
        with TrainView(loaded.train.steps, len(runs)) as view:
            for run in runs:
                view.start_run(run.name)
                try:
                    done = execute(run, start, folder, text, sys.argv, View(view.step, view.preflight))
                except KeyboardInterrupt:
                    console.note(f"interrupted; the log up to the last whole rollout batch is in {folder / run.name}")
                    raise
                except GspoError as error:
                    if (folder / run.name).exists():
                        console.note(f"stopped; the log is in {folder / run.name}")
                    if error.code != ExitCode.GUARD or len(runs) == 1:
                        raise
                    console.note(str(error))  # a result, which stays in the study and counts
                    stopped += 1
                    continue
                last = view.rows[-1] if view.rows else []
                view.end_run(f"run {done}: {last[0]} reward {last[1]}")
                if json_:
                    console.print_json({"run": str(done), "arm": run.arm, "seed": run.recipe.seed})
    if trials:
        finish_tuning(folder, loaded.report.metric, trials, json_)
    if not json_:
        console.out.print(str(folder))
    if stopped:
        console.note(f"{stopped} of {len(runs)} runs were stopped by a guard; they stay in the study and count")
        raise typer.Exit(ExitCode.GUARD)


@console.command
def cold_start(
    recipe: RECIPE = "quickstart",
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("cold-start"),
    set_: Set = None,
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

    from gspo_cli.models.torch_setup import prepare_torch
    from gspo_cli.training.cold_start import build

    prepare_torch(loaded.model.threads)
    build(loaded, out, ColdStartBar())
    console.out.print(str(out))
