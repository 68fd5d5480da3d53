"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gspo_cli.cli import completion
from gspo_cli.errors import GspoError

RECIPE = Annotated[
    str,
    typer.Argument(
        help="A shipped recipe's name or a .toml file.", metavar="[RECIPE]", autocompletion=completion.recipes
    ),
]
RecipeName = Annotated[str, typer.Argument(help="A recipe's name or file.", autocompletion=completion.recipes)]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
JsonLines = Annotated[bool, typer.Option("--json", help="JSON on stdout: one object a line.")]
Study = Annotated[
    str | None, typer.Argument(help="Study folder, run folder, or a name under --out.", show_default="the newest")
]
RunName = Annotated[str, typer.Argument(help="Run folder, <study>/<run>, or the beginning of a run id.")]
Results = Annotated[Path, typer.Option("--out", help="Where studies lie.")]
Model = Annotated[str | None, typer.Option(help="A Hugging Face folder or hub name in place of the recipe's model.")]
Out = Annotated[Path, typer.Option(help="Root of all results.")]
Name = Annotated[str | None, typer.Option(help="The study's folder name; default: the recipe's and the time.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change any key of the recipe: --set train.lr=2e-4.", autocompletion=completion.keys),
]
TrustCode = Annotated[
    str | None, typer.Option("--trust-remote-code", metavar="REVISION", help="Run a model's own code, of this commit.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Answers graded at once.", show_default="one a physical core")]
SandboxKind = Annotated[str, typer.Option("--sandbox", help="Where programs run: auto, bwrap or sandlock.")]
UnsafeLocal = Annotated[bool, typer.Option("--unsafe-local", help="Run programs without isolation; is recorded.")]
GraderPython = Annotated[str | None, typer.Option(help="Interpreter of the graded programs.", show_default="this one")]


class Launcher(StrEnum):
    """Where the runs of a study are trained."""

    LOCAL = "local"
    TORCHRUN = "torchrun"
    RAY = "ray"


def check_launcher(
    launcher: Launcher, jobs: int, nproc: int | None, gpus_per_run: int | None, under_torchrun: bool
) -> None:
    """Errors: GspoError for options that belong to another launcher."""
    for broken, message, why in (
        (
            nproc is not None and launcher is not Launcher.TORCHRUN,
            "--nproc without --launcher torchrun",
            "it says how many processes torchrun starts on this machine",
        ),
        (
            gpus_per_run is not None and launcher is not Launcher.RAY,
            "--gpus-per-run without --launcher ray",
            "--jobs deals this machine's GPUs out",
        ),
        (jobs > 1 and launcher is Launcher.RAY, "--jobs with --launcher ray",
         "as many runs go at once as the cluster has room for"),
        (jobs > 1 and launcher is Launcher.TORCHRUN, "--jobs with --launcher torchrun",
         "all processes work on one run after the other"),
        (under_torchrun and jobs > 1, "--jobs under torchrun", "each of its processes would train all runs"),
        (under_torchrun and launcher is Launcher.RAY, "--launcher ray under torchrun",
         "each of its processes would place all runs"),
    ):  # fmt: skip
        if broken:
            raise GspoError(message, why, "remove it")


def parse_seeds(seed: int | None, seeds: str | None, default: int) -> list[int]:
    """`--seed 3` or `--seeds 0-7` or `0,3,5`, without repeats.

    Errors: GspoError for text that is neither, or for both options.
    """
    if seed is not None and seeds is not None:
        raise GspoError("--seed and --seeds together", "they name the same thing", "use one of them")
    if seeds is None:
        return [default if seed is None else seed]
    found: list[int] = []
    for part in seeds.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise GspoError(
                f"--seeds {seeds} is no list of seeds", f"{part.strip()!r} is no number or range", "e.g. 0-7"
            )
        found += range(int(first), int(last or first) + 1)
    if len(set(found)) != len(found):
        raise GspoError(f"--seeds {seeds} names a seed twice", "a seed is run once an arm", "name each seed once")
    return found
