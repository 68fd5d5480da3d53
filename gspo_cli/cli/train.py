"""`gspo train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gspo_cli.cli import completion, console
from gspo_cli.cli.options import RECIPE, JsonLines, Launcher, Model, Name, Out, Set, TrustCode, check_launcher
from gspo_cli.errors import GspoError

Algo = Annotated[
    str | None,
    typer.Option(help="Arms, comma-separated: algorithms or labels of [arms].", autocompletion=completion.algorithms),
]
Grid = Annotated[
    list[str] | None, typer.Option(help="Tune every arm alike: --grid algo.lr=5e-5,1e-4, on --seeds of its own.")
]
Tuned = Annotated[Path | None, typer.Option(help="The study that --grid made: train with what it chose.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at once; they share cores or GPUs.")]
Where = Annotated[
    Launcher, typer.Option(help="Where runs go: this machine, processes that share each run, or a Ray cluster.")
]
Processes = Annotated[int | None, typer.Option(min=1, help="With --launcher torchrun: processes of each run.")]
GpusPerRun = Annotated[
    int | None,
    typer.Option(min=0, help="With --launcher ray: GPUs of each run.", show_default="1 where the cluster has any"),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Plan only: memory of each GPU and time of each phase. Writes nothing.")
]
Resume = Annotated[Path | None, typer.Option(help="Go on with a run or a study where it stopped.")]
AllowChange = Annotated[list[str] | None, typer.Option(help="With --resume: a key that --set may change.")]


@console.command
def train(
    recipe: RECIPE = "quickstart",
    algo: Algo = None,
    seed: Annotated[int | None, typer.Option(help="One seed.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several: 0-7 or 0,3,5.")] = None,
    steps: Annotated[int | None, typer.Option(help="Rollout batches.")] = None,
    model: Model = None,
    out: Out = Path("results"),
    name: Name = None,
    set_: Set = None,
    grid: Grid = None,
    tuned: Tuned = None,
    jobs: Jobs = 1,
    launcher: Where = Launcher.LOCAL,
    nproc: Processes = None,
    gpus_per_run: GpusPerRun = None,
    dry_run: DryRun = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete runs of the same name first.")] = False,
    resume: Resume = None,
    allow_change: AllowChange = None,
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
    from gspo_cli.cli.new_study import Asked, new_study
    from gspo_cli.launch.torchrun import is_rank, launch, ranks_of_this_program
    from gspo_cli.models.foreign_code import allow_code

    check_launcher(launcher, jobs, nproc, gpus_per_run, is_rank())
    allow_code(trust_remote_code)
    if launcher is Launcher.TORCHRUN and not is_rank() and not dry_run:
        raise typer.Exit(launch(nproc or 1))
    ranks = ranks_of_this_program()
    console.settings["quiet"] |= not ranks.first
    if resume is None:
        if allow_change:
            raise GspoError("--allow-change without --resume", "it is about a run that goes on", "add --resume PATH")
        asked = Asked(recipe, algo, seed, seeds, steps, model, out, name, set_ or [], grid or [], tuned, jobs, launcher,
                      gpus_per_run, dry_run, overwrite, json_)  # fmt: skip
        return new_study(asked, ranks)

    from gspo_cli.cli.go_on import go_on, refuse_with_resume

    refuse_with_resume({"--algo": algo, "--seed": seed, "--seeds": seeds, "--model": model, "--name": name})
    refuse_with_resume({"--overwrite": overwrite, "--dry-run": dry_run})
    if launcher is not Launcher.RAY:
        return go_on(resume, steps, set_ or [], allow_change or [], json_, ranks)

    from gspo_cli.cli.endings import end
    from gspo_cli.cli.on_cluster import go_on_with_ray

    end(resume, go_on_with_ray(resume, gpus_per_run, steps, set_ or [], allow_change or [], json_), json_)
