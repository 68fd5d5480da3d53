"""`gspo train`: its options, and the three ways they lead: torchrun's launcher, a new study, or a resume."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from gspo_cli.cli import console, options
from gspo_cli.cli.options import JsonLines, Model, Out, RecipeArgument, Set, TrustCode
from gspo_cli.distributed import PROFILE
from gspo_cli.errors import GspoError

TUNING, MACHINES, OTHERS = "Tuning and sweeps", "Machines and processes", "Further options"
"""Panels of the help; the options without one come first."""
Launcher = Literal["local", "torchrun", "ray"]
Algo = Annotated[
    str | None,
    typer.Option(
        help=r"Arms, comma-separated: algorithms, or labels from \[arms].", autocompletion=options.complete_algorithms
    ),
]
Name = Annotated[str | None, typer.Option(help="Name of the study folder.", show_default="recipe and time")]
Grid = Annotated[
    list[str] | None,
    typer.Option(
        help="Tune every arm over the same values: --grid algo.lr=5e-5,1e-4, on separate --seeds.",
        rich_help_panel=TUNING,
    ),
]
Halving = Annotated[
    str | None,
    typer.Option(
        help="With --grid: rollout batches of each stage of successive halving, such as 30,60,120.",
        rich_help_panel=TUNING,
    ),
]
Tuned = Annotated[
    str | None,
    typer.Option(
        help="Train with the settings that this --grid study chose.",
        autocompletion=options.complete_study,
        rich_help_panel=TUNING,
    ),
]
Sweep = Annotated[
    list[str] | None,
    typer.Option(
        help="One study per value of a recipe key, for one or two keys: --sweep rollout.max_lag=0,4.",
        rich_help_panel=TUNING,
    ),
]
Jobs = Annotated[
    int, typer.Option(min=1, help="Runs to train at once; they share the cores or GPUs.", rich_help_panel=MACHINES)
]
Where = Annotated[
    Launcher,
    typer.Option(
        help="Train on this machine, with several processes per run, or on a Ray cluster.", rich_help_panel=MACHINES
    ),
]
Processes = Annotated[
    int | None, typer.Option(min=1, help="With --launcher torchrun: processes per run.", rich_help_panel=MACHINES)
]
GpusPerRun = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="With --launcher ray: GPUs per run.",
        show_default="1 if the cluster has any",
        rich_help_panel=MACHINES,
    ),
]
ReportTo = Annotated[
    str | None,
    typer.Option(
        help="Trackers to keep up to date: tensorboard, wandb (offline), trackio (local), or several.",
        rich_help_panel=OTHERS,
    ),
]
ShowSamples = Annotated[
    bool | None,
    typer.Option(
        "--show-samples/--hide-samples",
        help="Show sampled responses.",
        show_default="on a terminal with room",
        rich_help_panel=OTHERS,
    ),
]
Profile = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Write a torch trace of this rollout batch's training, without its sampling, to RUN/profile/.",
        rich_help_panel=OTHERS,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan, with memory per GPU and time per phase; write nothing.")
]


def train(
    recipe: RecipeArgument = "quickstart",
    algo: Algo = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds: 0-7 or 0,3,5.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of rollout batches.")] = None,
    model: Model = None,
    set_: Set = None,
    name: Name = None,
    out: Out = Path("results"),
    dry_run: DryRun = False,
    resume: Annotated[
        str | None, typer.Option(help="Resume a run or a study.", autocompletion=options.complete_study)
    ] = None,
    trust_remote_code: TrustCode = None,
    json_: JsonLines = False,
    grid: Grid = None,
    halving: Halving = None,
    tuned: Tuned = None,
    sweep: Sweep = None,
    jobs: Jobs = 1,
    launcher: Where = "local",
    nproc: Processes = None,
    gpus_per_run: GpusPerRun = None,
    seed: Annotated[int | None, typer.Option(help="One seed.", rich_help_panel=OTHERS)] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete runs of the same name first.", rich_help_panel=OTHERS)
    ] = False,
    allow_change: Annotated[
        list[str] | None,
        typer.Option(
            help="With --resume: a key that --set may change, or `plugins`: your modules.", rich_help_panel=OTHERS
        ),
    ] = None,
    show_samples: ShowSamples = None,
    report_to: ReportTo = None,
    profile: Profile = None,
) -> None:
    """Train one or several algorithms from the same start model, on the same data in the same order.

    Examples:
        gspo train
        gspo train --algo grpo,gspo --seeds 0-7 --jobs 2
        gspo train --algo grpo,gspo --grid algo.lr=5e-5,1e-4 --seeds 100-102 --name tuning
        gspo train --algo grpo,gspo --tuned tuning --seeds 0-7
        gspo train --algo grpo,gspo --seeds 0-5 --sweep noise.token=0,0.3
        gspo train --launcher torchrun --nproc 8 --model Qwen/Qwen3-4B
        gspo train real/qwen3-30b-a3b-8xh200 --dry-run --set cluster.gpu=h100
        gspo train --resume my-study --jobs 2
    """
    from gspo_cli.cli.train.halving import NAME as HALVING
    from gspo_cli.cli.train.halving import resume_halving, train_halving
    from gspo_cli.cli.train.new_study import StudyRequest, train_new_study, train_sweep
    from gspo_cli.cli.train.resume import resume_at_once, resume_one_by_one
    from gspo_cli.exporters.mirror import check_all
    from gspo_cli.launch.local import join_ranks, launch, launched_by_torchrun
    from gspo_cli.launch.report_to import reporting
    from gspo_cli.models.remote_code import allow_code
    from gspo_cli.runlog.folder import find_folder

    trackers = check_all(report_to)
    on_ray = launcher == "ray"
    check_launcher(launcher, jobs, nproc, gpus_per_run, launched_by_torchrun())
    if profile is not None:
        if on_ray:
            raise GspoError("--profile with --launcher ray", "it traces runs of this machine", "train one run here")
        os.environ[PROFILE] = str(profile)
    allow_code(trust_remote_code)
    if launcher == "torchrun" and not launched_by_torchrun() and not dry_run:
        raise typer.Exit(launch(nproc or 1))
    ranks = join_ranks()
    console.settings["quiet"] |= not ranks.is_main
    trackers = trackers if ranks.is_main else []
    if resume is None:
        if allow_change:
            raise GspoError("--allow-change without --resume", "it only applies to a resumed run", "add --resume PATH")
        chosen = None if tuned is None else find_folder(tuned, out) or Path(tuned)
        request = StudyRequest(
            recipe=recipe, algo=algo, seed=seed, seeds=seeds, steps=steps, model=model, out=out, name=name,
            sets=set_ or [], grid=grid or [], halving=halving, tuned=chosen, sweep=sweep or [], jobs=jobs,
            on_ray=on_ray, gpus_per_run=gpus_per_run, dry_run=dry_run, overwrite=overwrite, as_json=json_,
            show_samples=show_samples, trackers=trackers,
        )  # fmt: skip
        if halving:
            return train_halving(request, ranks)
        return train_sweep(request, ranks) if sweep else train_new_study(request, ranks)

    options = {"RECIPE": None if recipe == "quickstart" else recipe, "--grid": grid, "--tuned": tuned,
               "--halving": halving,
               "--algo": algo, "--seed": seed, "--seeds": seeds, "--model": model, "--name": name,
               "--overwrite": overwrite, "--dry-run": dry_run, "--sweep": sweep}  # fmt: skip
    check_resume(options)
    folder = find_folder(resume, out) or Path(resume)
    if (folder / HALVING).is_file():
        check_resume({"--steps": steps, "--set": set_, "--allow-change": allow_change, "--launcher ray": on_ray})
        return resume_halving(folder, jobs, ranks)
    from gspo_cli.training.state.run_config import check_changes, overrides
    from gspo_cli.training.study.plans import nothing_to_resume
    from gspo_cli.training.study.sweep import studies_of

    changes, studies = overrides(steps, set_ or []), studies_of(folder)
    for path in studies:
        if not any(map(os.path.isfile, (path / "run.json", path / "study.json", path.parent / "study.json"))):
            raise nothing_to_resume(path)
        for run in (path, *path.glob("*")) if changes else ():
            check_changes(run, changes, allow_change or [])
    console.note_torch()
    for path in studies:
        study = path.parent if (path / "run.json").is_file() else path
        with reporting(study, trackers, console.note):
            if on_ray or jobs > 1:
                resume_at_once(path, jobs, changes, allow_change or [], json_, on_ray, gpus_per_run)
            else:
                resume_one_by_one(path, changes, allow_change or [], json_, ranks, show_samples)


def check_resume(options: Mapping[str, object]) -> None:
    """Errors: GspoError for options, by their names, that a resumed run cannot take."""
    if given := [option for option, value in options.items() if value is not None and value is not False]:
        raise GspoError(
            f"{given[0]} with --resume",
            "a resumed run keeps its recipe, arm and seed",
            f"remove {' and '.join(given)}, or start another study without --resume",
        )


def check_launcher(
    launcher: Launcher, jobs: int, nproc: int | None, gpus_per_run: int | None, under_torchrun: bool
) -> None:
    """Errors: GspoError for options that belong to another launcher."""
    for broken, message, why in (
        (nproc is not None and launcher != "torchrun", "--nproc without --launcher torchrun",
         "it sets how many processes torchrun starts on this machine"),
        (gpus_per_run is not None and launcher != "ray", "--gpus-per-run without --launcher ray",
         "without Ray, --jobs shares out this machine's GPUs"),
        (jobs > 1 and launcher == "ray", "--jobs with --launcher ray",
         "Ray runs as many runs at once as the cluster has room for"),
        (jobs > 1 and launcher == "torchrun", "--jobs with --launcher torchrun",
         "all processes work on one run after the other"),
        (under_torchrun and jobs > 1, "--jobs under torchrun", "each of its processes would train all runs"),
        (under_torchrun and launcher == "ray", "--launcher ray under torchrun",
         "each of its processes would place all runs"),
    ):  # fmt: skip
        if broken:
            raise GspoError(message, why, "remove it")
