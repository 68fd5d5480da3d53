"""Train a new study, or one for each cell of a sweep: plan its runs, check all that can be checked, then train."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gspo_cli.cli import console
from gspo_cli.cli.options import listed, parse_seeds, registered
from gspo_cli.cli.train.execute import as_job, past_guard, report_study, train_jobs, train_one_by_one
from gspo_cli.cli.views.plan import show_plan
from gspo_cli.cli.views.training import ColdStartBar, TrainView
from gspo_cli.errors import ExitCode, GspoError, quoted

if TYPE_CHECKING:
    from gspo_cli.config import Recipe
    from gspo_cli.distributed import Ranks


MOST_ARMS = 1000


@dataclass(frozen=True, kw_only=True)
class StudyRequest:
    """The options of `gspo train` that describe a new study."""

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
    halving: str | None
    tuned: Path | None
    sweep: list[str]
    jobs: int
    on_ray: bool
    gpus_per_run: int | None
    dry_run: bool
    overwrite: bool
    as_json: bool
    show_samples: bool | None
    trackers: list[str]
    trials: tuple[str, ...] = ()
    """Of the grid, those to train; empty = all. Who names them chooses among them."""


def read_request(request: StudyRequest) -> tuple[Recipe, list[str], list[int]]:
    """The recipe, arms and seeds. Errors: GspoError for what cannot be a study."""
    from gspo_cli.plugins import is_plugin
    from gspo_cli.recipe import default_arms, load, no_algorithm, refuse_twice, use_model
    from gspo_cli.report.runs.metric_spec import parse_metric

    options = use_model(request.model) | ({} if request.steps is None else {"train": {"steps": request.steps}})
    recipe = load(request.recipe, options, request.sets)
    parse_metric(recipe.report.metric)  # refuses a metric that could not judge the study
    if (request.seed, request.seeds) != (None, None):
        refuse_twice(recipe, ["seed"], "--seed")
    if request.name is not None:
        refuse_twice(recipe, ["name"], "--name")
    seeds = parse_seeds(request.seed, request.seeds, recipe.seed)
    arms = default_arms(recipe)
    if request.algo is not None:
        arms = listed(request.algo)
    if len(arms) > MOST_ARMS:
        raise GspoError(
            f"a study of {len(arms)} arms",
            f"it has at most {MOST_ARMS}, and each trains once for every seed",
            "name those to train with --algo",
        )
    if len(set(arms)) != len(arms) or not all(arms):
        raise GspoError(
            f"--algo {request.algo!r} is not a list of arms", "each arm is named, and once", "e.g. --algo grpo,gspo"
        )
    algorithms = registered("algorithms", "ALGORITHMS")  # before torch is loaded, which takes seconds
    for name in arms:
        if not (name in algorithms or name in recipe.arms or is_plugin(name)):
            raise no_algorithm(name, algorithms, recipe.arms)
    return recipe, arms, seeds


def train_new_study(request: StudyRequest, ranks: Ranks) -> None:
    """Train the requested runs, or with `--dry-run` print their plan."""
    from gspo_cli.runlog.folder import check_free, make_writable, study_folder

    recipe, arms, seeds = read_request(request)
    # on rank 0 alone, because the name may contain the time
    folder = Path(ranks.broadcast(lambda: str(study_folder(request.out, request.name, recipe.name))))
    recipe = recipe.model_copy(update={"name": folder.name})

    from gspo_cli.launch.local import threads_per_run
    from gspo_cli.training.study.arms import arm_notes, plan_runs
    from gspo_cli.training.study.inputs import read_inputs
    from gspo_cli.training.study.tuning import expand, parse_grid, record_tuning, with_tuning

    trials: dict[str, Any] = {}
    if request.grid and request.tuned:
        raise GspoError("--grid and --tuned together", "one tries settings, the other uses the result", "use one")
    if request.tuned:
        recipe = with_tuning(recipe, arms, seeds, request.tuned)
    elif request.grid:
        recipe, arms, trials = expand(recipe, arms, parse_grid(request.grid))
        if request.trials:  # of a later stage: what the command line sets in the other trials is none of its arms'
            arms, given = [*request.trials], recipe._command_line
            recipe._command_line = given | {"arms": {arm: own for arm, own in given["arms"].items() if arm in arms}}
    threads = recipe.model.threads or (1 if request.on_ray else None)
    if request.jobs > 1:
        threads = threads_per_run(request.jobs, threads)
    if threads != recipe.model.threads:  # recorded like any other key
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"threads": threads})})
    runs = plan_runs(recipe, arms, seeds, here=False)
    ranks.broadcast(partial(check_free, folder, [run.name for run in runs], request.overwrite))
    inputs = read_inputs(recipe, planning=request.dry_run)
    console.note(*arm_notes(recipe, arms), *(f"warning: {note}" for note in inputs.notes))
    if inputs.problems and inputs.first:
        size = f"the first prompt has {console.plural(len(inputs.first.token_ids), 'token')}"
        console.note(f"checked: {console.plural(len(inputs.problems), 'problem')}; tokenizer; {size}")
    if request.dry_run:
        return show_plan(runs, inputs.config, folder, request.as_json)
    console.note_torch()
    from gspo_cli.launch.ray_cluster import connect  # torch and all else, only once what needs neither is valid
    from gspo_cli.launch.report_to import reporting
    from gspo_cli.models.device import prepare_torch
    from gspo_cli.plugins import loaded_folders
    from gspo_cli.recipe import find
    from gspo_cli.report.compare.scores import choose
    from gspo_cli.report.runs.folders import read_study
    from gspo_cli.tasks.scoring import show_slow_rewards
    from gspo_cli.training.cold_start import start_model
    from gspo_cli.training.study.checks import check_ranks, check_recipe_engine, check_routers
    from gspo_cli.training.study.plans import StudyPlan, record_plan

    for run in runs:
        check_recipe_engine(run.recipe, trains=True)
    check_ranks([run.recipe for run in runs], ranks)
    cluster = connect(request.gpus_per_run, recipe.model.threads or 1) if request.on_ray else None

    def prepare_starts() -> dict[int, str]:
        make_writable(request.out)
        return {seed: str(start_model(recipe.seeded(seed), ColdStartBar())) for seed in seeds}

    show_slow_rewards(console.note)
    prepare_torch(recipe.model.threads, recipe.model.float32_matmul)
    starts = {int(seed): Path(start) for seed, start in ranks.broadcast(prepare_starts).items()}
    check_routers([run.recipe for run in runs], starts[seeds[0]])
    study = StudyPlan(recipe, arms, seeds, find(request.recipe).read_text(encoding="utf-8"), loaded_folders())
    console.note(f"study {folder}: {console.plural(len(runs), 'run')} of {recipe.train.steps} rollout batches")
    with reporting(folder, request.trackers, console.note):
        if request.on_ray or request.jobs > 1:
            if cluster is not None:
                record_plan(folder, study)  # now, because a run may wait for hours
            jobs = [as_job(run, study, starts[run.recipe.seed], folder, request.on_ray) for run in runs]
            stopped = train_jobs(jobs, request.jobs, recipe.train.steps, folder, request.as_json, cluster)
        else:
            view = TrainView(recipe.train.steps, len(runs), request.show_samples)
            stopped = train_one_by_one(runs, study, starts, folder, request.as_json, ranks, view)
    if ranks.is_main:
        if trials and not request.trials:
            metric = recipe.report.metric
            found = record_tuning(folder, {"metric": metric, "arms": choose(read_study(folder), metric, trials)})
            show_choice(folder, found, request.as_json)
        report_study(folder, stopped, request.as_json, result=not trials)


def show_choice(study: Path, tuning: dict[str, Any], as_json: bool) -> None:
    """Print what was chosen for each arm."""
    if as_json:
        return console.print_json({"tuning": tuning})
    for arm, result in tuning["arms"].items():
        keys = ", ".join(f"{key} = {value}" for key, value in result["chosen"].items())
        scores = ", ".join("n/a" if s["score"] is None else f"{s['score']:.4g}" for s in result["scores"])
        console.out.print(f"{arm}: {keys} ({tuning['metric']} of {result['trials']} trials, best first: {scores})")
    console.note(f"to train with these settings, on other seeds: gspo train ... --tuned {quoted(study)} --seeds 0-7")


def train_sweep(request: StudyRequest, ranks: Ranks) -> None:
    """Train every cell's study, or with `--dry-run` print how many runs they are and the plan of each.

    A run that a guard stops does not end the sweep. Exit code 4 at the end if there was one.
    Errors: GspoError for a cell that cannot be trained; nothing has been written then.
    """
    from gspo_cli.plugins import loaded_folders
    from gspo_cli.recipe import find, refuse_twice
    from gspo_cli.runlog.folder import check_free, study_folder
    from gspo_cli.training.study.arms import Run, plan_runs
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
    folder = Path(ranks.broadcast(lambda: str(study_folder(request.out, request.name, whole.name))))
    sets = [text for text in request.sets if not text.startswith("name=")]  # the folder has that name
    requests = [replace(request, sweep=[], sets=[*sets, *cell.sets], out=folder, name=cell.name) for cell in cells]
    text = find(request.recipe).read_text(encoding="utf-8")
    plans, runs = dict[str, StudyPlan](), dict[str, list[Run]]()
    for cell, one in zip(cells, requests, strict=True):
        recipe, arms, seeds = read_request(one)
        recipe = recipe.model_copy(update={"name": cell.name})
        runs[cell.name] = plan_runs(recipe, arms, seeds, here=not request.dry_run)
        plans[cell.name] = StudyPlan(recipe, arms, seeds, text, loaded_folders())
    console.note(f"sweep {folder}: {len(cells)} cells, {console.plural(sum(map(len, runs.values())), 'run')}")
    for cell in cells:
        console.note(f"  {cell.name}: {console.plural(len(runs[cell.name]), 'run')}, {' '.join(cell.sets)}")
    if ranks.is_main and not request.dry_run:
        for name, planned in runs.items():
            check_free(folder / name, [run.name for run in planned], request.overwrite)
        for name, plan in plans.items():  # a resume trains what did not begin
            record_plan(folder / name, plan)
    stopped = [past_guard(partial(train_new_study, one, ranks)) for one in requests]
    if ranks.is_main and not request.dry_run:
        console.note(f"the map: gspo report map {quoted(folder)}")
    if any(stopped):
        raise typer.Exit(ExitCode.GUARD)
