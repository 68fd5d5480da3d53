"""Several processes for one run, on this machine: torchrun's launcher from within the program.

A real `torchrun ... -m gspo_cli train ...` (several machines, Slurm) needs none of this: its processes find each other.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
from datetime import UTC, datetime

from gspo_cli.attempt import AGAIN, LAUNCHED
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.ranks import Ranks, join, leave

ABORTED = -signal.SIGABRT


def is_rank() -> bool:
    """Whether torchrun started this process, as one of several or alone."""
    return "WORLD_SIZE" in os.environ


def launch(nproc: int) -> ExitCode:
    """Runs this very command in `nproc` processes that know of each other; the exit code of the one that failed first,
    which has said why.

    Where one was aborted (SIGABRT: glibc's "double free or corruption" has been seen at a process's end, seldom and
    for no known reason), all are begun once more and go on from the last checkpoint; said aloud, and in `events.jsonl`.
    Errors: GspoError when a process was ended by a signal, which says nothing.
    """
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # what failed says so itself
    os.environ[LAUNCHED] = datetime.now(UTC).isoformat()
    rank, code = run_all(nproc)
    if code == ABORTED:
        os.environ[AGAIN] = f"rank {rank} was ended by signal {-code} (SIGABRT)"
        sys.stderr.write(f"warning: {os.environ[AGAIN]}; once more, from the last checkpoint if there is one\n")
        rank, code = run_all(nproc)
    if code < 0:
        raise GspoError(
            f"rank {rank} was ended by signal {-code}",
            "the system or another program sent it (9 is often the end of memory)",
            "gspo train --resume goes on from the last checkpoint, on any number of ranks",
            ExitCode.ENGINE,
        )
    return ExitCode(code) if code in list(ExitCode) else ExitCode.UNEXPECTED


def run_all(nproc: int) -> tuple[int, int]:
    """One try: which rank failed first, and its exit code (negative for a signal); 0 where none did."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=nproc, run_id="gspo", rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=0, monitor_interval=0.1,
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)("-m", "gspo_cli", *sys.argv[1:])
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        # the others of an aborted one may be found gone in the same moment
        rank = next((rank for rank, code in codes.items() if code == ABORTED), error.get_first_failure()[0])
        return rank, codes[rank]
    return 0, ExitCode.OK


def ranks_of_this_program() -> Ranks:
    """Meets the others that torchrun started, and parts from them in good order when the program ends."""
    ranks = join()
    atexit.register(leave, ranks)
    return ranks
