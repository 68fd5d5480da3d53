"""Several processes for one run: torchrun's launcher, and what a process that it started must know."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from typing import TYPE_CHECKING

import typer

from gspo_cli.cli import console
from gspo_cli.errors import ExitCode, GspoError

if TYPE_CHECKING:
    from gspo_cli.ranks import Ranks

LAUNCHERS = ("local", "torchrun")


def check_launcher(launcher: str, nproc: int, jobs: int) -> None:
    """Errors: GspoError for a launcher that there is not, and for options that belong to another one."""
    if launcher not in LAUNCHERS:
        raise GspoError(f"--launcher {launcher}", f"there are {', '.join(LAUNCHERS)}", "name one of these")
    if nproc > 1 and launcher != "torchrun":
        raise GspoError("--nproc without --launcher torchrun", "it says how many processes torchrun starts", "add it")
    if (launcher == "torchrun" or "WORLD_SIZE" in os.environ) and jobs > 1:
        raise GspoError(
            f"--jobs {jobs} with torchrun",
            "the processes of one run work on it together, run after run",
            "one of the two: several processes a run, or several runs at once",
        )


def must_launch(launcher: str) -> bool:
    """Whether this process is to start the ranks, rather than being one."""
    return launcher == "torchrun" and "WORLD_SIZE" not in os.environ


def launch(nproc: int) -> None:
    """Runs this very command in `nproc` processes that know of each other, and ends as they do.

    Errors: typer.Exit with the exit code of the process that failed first; that process has said why.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # what failed says so itself
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=nproc, rdzv_backend="c10d", rdzv_endpoint="localhost:0",
        max_restarts=0, monitor_interval=0.1,
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)("-m", "gspo_cli", *sys.argv[1:])
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        if code < 0:
            console.note(f"a process was ended by signal {-code}")
        raise typer.Exit(code if code > 0 else ExitCode.ENGINE) from error


def ranks_of_this_program() -> Ranks:
    """Meets the others that torchrun started; every process but the first is silent from then on."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        from gspo_cli.ranks import ALONE

        return ALONE
    from gspo_cli.ranks import join, leave

    ranks = join()
    atexit.register(leave, ranks)
    console.settings["quiet"] |= not ranks.first
    return ranks
