"""Several runs of a study at once, each in a process of its own with its share of the machine's cores or GPUs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.launch.job import PROGRAM, Event, Job, as_error, follow, shown


def threads_each(jobs: int, wanted: int | None) -> int:
    """CPU threads of each of `jobs` runs: an equal share of the cores, and no more than the recipe asks for."""
    return max(1, min(wanted or sys.maxsize, len(os.sched_getaffinity(0)) // jobs))


def share_of_gpus(slot: int, jobs: int, devices: list[str]) -> str | None:
    """CUDA_VISIBLE_DEVICES of a slot; with fewer GPUs than jobs some share one. None without GPUs."""
    if not devices:
        return None
    return ",".join(devices[slot::jobs] or [devices[slot % len(devices)]])


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [part for part in listed.split(",") if part.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def run_all(
    todo: list[Job], jobs: int, on_event: Callable[[str, Event], None], program: tuple[str, ...] = PROGRAM
) -> dict[str, int]:
    """Trains all, `jobs` at a time, in order, and gives each run's exit code.

    `on_event` is called, from several threads, with a run's name and what its process tells: `started`, `step`,
    `warnings`, `ended`. A run that a training guard stops is a result; after any other failure no further run is begun,
    those in progress are waited for, and the error is raised.
    Errors: GspoError of the first run that failed otherwise.
    """
    waiting, codes, errors = iter(list(todo)), dict[str, int](), list[GspoError]()
    devices, lock, stop = visible_gpus(), threading.Lock(), threading.Event()

    def take() -> Job | None:
        with lock:
            return None if stop.is_set() else next(waiting, None)

    def work(slot: int) -> None:
        gpus = share_of_gpus(slot, jobs, devices)
        environment = os.environ | ({} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus})
        while (job := take()) is not None:
            for event in follow(job, environment, program):
                if "ended" not in event:
                    on_event(job.name, event)
                    continue
                codes[job.name] = event["ended"]
                if event["ended"] not in (ExitCode.OK, ExitCode.GUARD):
                    errors.append(as_error(event))
                    stop.set()
                on_event(job.name, shown(event))

    workers = [threading.Thread(target=work, args=(slot,)) for slot in range(min(jobs, len(todo)))]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    except KeyboardInterrupt:  # the children were interrupted with this process, and end by themselves
        stop.set()
        for worker in workers:
            worker.join()
        raise
    if errors:
        raise errors[0]
    return codes
