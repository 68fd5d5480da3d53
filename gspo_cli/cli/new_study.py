"""What `gspo train` does without `--resume`: reads the recipe, checks all that can be, then has the runs trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo_cli.cli import console
from gspo_cli.cli.endings import end
from gspo_cli.cli.options import Launcher, parse_seeds
from gspo_cli.errors import GspoError

if TYPE_CHECKING:
    from gspo_cli.config import Recipe
    from gspo_cli.ranks import Ranks
    from gspo_cli.training.study import Run


@dataclass(frozen=True)
class Asked:
    """The options of `gspo train` that belong to a new study."""

    recipe: str
    algo: str | None
    seed: int | None
    seeds: str | None
    steps: int | None
    model: str | None
    out: Path
    name: str | None
    sets: list[str]
    grid: list[str]
    tuned: Path | None
    jobs: int
    launcher: Launcher
    gpus_per_run: int | None
    dry_run: bool
    overwrite: bool
    as_json: bool


def new_study(asked: Asked, ranks: Ranks) -> None:
    """Trains the runs that were asked for, or shows the plan of them."""
    from gspo_cli.runlog.folder import study_folder

    loaded = read_recipe(asked)
    seeds = parse_seeds(asked.seed, asked.seeds, loaded.seed)
    # its name may hold the time
    folder = Path(ranks.from_first(lambda: str(study_folder(asked.out, asked.name, loaded.name))))

    from gspo_cli import recipe as recipes
    from gspo_cli.cli.study_options import finish_tuning, prepare_arms
    from gspo_cli.cli.train_runs import train_runs
    from gspo_cli.launch.ray_cluster import connect
    from gspo_cli.plugins import used_folders
    from gspo_cli.training.checks import check_ranks
    from gspo_cli.training.plans import Plan
    from gspo_cli.training.study import plan

    loaded = loaded.model_copy(update={"name": folder.name})
    loaded, arms, trials = prepare_arms(loaded, arms_of(asked.algo, loaded), seeds, asked.grid, asked.tuned)
    loaded = with_shared_threads(asked, loaded)
    runs = plan(loaded, arms, seeds, here=not asked.dry_run)
    if asked.dry_run:
        from gspo_cli.cli.plan_view import show_plan

        return show_plan(runs, folder, asked.as_json)
    check_data(loaded)
    check_ranks(runs, ranks)
    on_ray = asked.launcher is Launcher.RAY
    cluster = connect(asked.gpus_per_run, loaded.model.threads or 1) if on_ray else None
    start = prepare_start(asked, loaded, runs, folder, ranks)
    text = recipes.find(asked.recipe).read_text(encoding="utf-8")
    planned = Plan(loaded, arms, seeds, text, used_folders())
    console.note(
        f"study {folder}: {len(runs)} run{'s' if len(runs) > 1 else ''} of {loaded.train.steps} rollout batches"
    )
    stopped = train_runs(runs, planned, start, folder, asked.jobs, cluster, asked.as_json, ranks)
    if not ranks.first:
        return
    if trials:
        finish_tuning(folder, loaded.report.metric, trials, asked.as_json)
    end(folder, stopped, asked.as_json)


def read_recipe(asked: Asked) -> Recipe:
    """The recipe with the named options and `--set` on top.

    Errors: GspoError for what is wrong with it, the number that is to judge the study included.
    """
    from gspo_cli import recipe as recipes
    from gspo_cli.report.judged_by import parse_number

    options: dict[str, Any] = {}
    if asked.steps is not None:
        options["train"] = {"steps": asked.steps}
    if asked.model is not None:
        options |= {"model": {"path": asked.model, "tiny": None}, "cold_start": None}
    loaded = recipes.load(asked.recipe, options, asked.sets)
    parse_number(loaded.report.metric)
    return loaded


def arms_of(algo: str | None, recipe: Recipe) -> list[str]:
    """What `--algo` names; without it the recipe's arms, or its one algorithm."""
    arms = [a.strip() for a in algo.split(",") if a.strip()] if algo else [*recipe.arms] or [recipe.algo.name]
    if not arms:
        raise GspoError(f"--algo {algo} names no arm", "it holds commas only", "e.g. --algo grpo,gspo")
    if len(set(arms)) != len(arms):
        raise GspoError(f"--algo {algo} names an arm twice", "an arm is trained once a seed", "name each arm once")
    return arms


def with_shared_threads(asked: Asked, recipe: Recipe) -> Recipe:
    """The recipe with the CPU threads that are left to each of several runs at once."""
    from gspo_cli.cli.study_options import with_threads
    from gspo_cli.launch.local import threads_each

    if asked.jobs > 1:
        return with_threads(recipe, threads_each(asked.jobs, recipe.model.threads))
    return with_threads(recipe, recipe.model.threads or 1) if asked.launcher is Launcher.RAY else recipe


def check_data(recipe: Recipe) -> None:
    """Errors: GspoError for data of task or benchmarks that cannot be had, or too few of them."""
    from gspo_cli.evals.during_training import load_benchmarks
    from gspo_cli.rollout.collect import PromptStream
    from gspo_cli.tasks import make_task
    from gspo_cli.tasks.contract import Noting

    task = make_task(recipe.task)
    problems = task.problems(recipe.task.split)
    for note in task.notes if isinstance(task, Noting) else ():
        console.note(f"warning: {note}")
    PromptStream(problems, recipe.rollout.prompts, seed=0)  # refuses too few problems before anything is built
    load_benchmarks(recipe.eval)


def prepare_start(asked: Asked, recipe: Recipe, runs: list[Run], study: Path, ranks: Ranks) -> Path:
    """The start model, built if need be, once the study's folder is known to be free."""
    from gspo_cli.cli.bars import ColdStartBar
    from gspo_cli.models.torch_setup import prepare_torch
    from gspo_cli.runlog.folder import check_free, make_writable
    from gspo_cli.training.checks import check_routers
    from gspo_cli.training.cold_start import start_model

    prepare_torch(recipe.model.threads)

    def prepare() -> str:
        check_free(study, [r.name for r in runs], asked.overwrite)
        make_writable(asked.out)
        return str(start_model(recipe, ColdStartBar()))

    start = Path(ranks.from_first(prepare))
    check_routers([run.recipe for run in runs], start)
    return start
