"""Several processes for one run, on this machine: torchrun's launcher from within the program.

A real `torchrun ... -m gspo_cli train ...` (several machines, Slurm) needs none of this: its processes find each other.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.ranks import Ranks, join, leave


def is_rank() -> bool:
    """Whether torchrun started this process, as one of several or alone."""
    return "WORLD_SIZE" in os.environ


def launch(nproc: int) -> ExitCode:
    """Runs this very command in `nproc` processes that know of each other; the exit code of the one that failed first,
    which has said why.

    Errors: GspoError when a process was ended by a signal, which says nothing.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # what failed says so itself
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=nproc, run_id="gspo", rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=0, monitor_interval=0.1,
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)("-m", "gspo_cli", *sys.argv[1:])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            raise GspoError(
                f"rank {rank} was ended by signal {-failure.exitcode}",
                "the system or another program sent it (9 is often the end of memory)",
                "gspo train --resume goes on from the last checkpoint, on any number of ranks",
                ExitCode.ENGINE,
            ) from error
        return ExitCode(failure.exitcode) if failure.exitcode in list(ExitCode) else ExitCode.UNEXPECTED
    return ExitCode.OK


def ranks_of_this_program() -> Ranks:
    """Meets the others that torchrun started, and parts from them in good order when the program ends."""
    ranks = join()
    atexit.register(leave, ranks)
    return ranks
