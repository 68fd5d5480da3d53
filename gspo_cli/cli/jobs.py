"""Several runs of a study at once, each in a process of its own with its share of the machine's cores or GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gspo_cli.errors import ExitCode, GspoError

Event = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A run to train."""

    name: str
    asked: dict[str, Any]
    """What `gspo_cli.training.child` reads."""


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
    todo: list[Job], jobs: int, on_event: Callable[[str, Event], None], program: tuple[str, ...] | None = None
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
            on_event(job.name, {"started": True})
            code, error = _run(job, environment, on_event, program or (sys.executable, "-m", "gspo_cli.training.child"))
            codes[job.name] = code
            if code not in (ExitCode.OK, ExitCode.GUARD):
                errors.append(error)
                stop.set()
            on_event(job.name, {"ended": code, "reason": "" if code == 0 else error.message})

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


def _run(
    job: Job, environment: dict[str, str], on_event: Callable[[str, Event], None], program: tuple[str, ...]
) -> tuple[int, GspoError]:
    """One process from start to end: (its exit code, what to say if that is not 0)."""
    said: list[str] | None = None
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile() as noise,
        subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=noise, env=environment, text=True) as process,
    ):
        assert process.stdin and process.stdout
        with suppress(BrokenPipeError):  # it died before it read; its exit code and last words say why
            process.stdin.write(json.dumps(job.asked) + "\n")
            process.stdin.close()
        for line in process.stdout:
            event = json.loads(line)
            said = event.get("error", said)
            on_event(job.name, event)
        code = process.wait()
        noise.seek(max(0, noise.seek(0, 2) - 2000))
        tail = noise.read().decode(errors="replace").strip()
    if said is not None:
        return code, GspoError(f"{job.name}: {said[0]}", said[1], said[2], _code(code))
    lines = tail.splitlines() or ["it said nothing"]
    why = f"exit code {code}; its last words: {lines[-1]}"
    return code, GspoError(f"run {job.name} ended", why, "train it alone, without --jobs, to see more", _code(code))


def _code(code: int) -> ExitCode:
    return ExitCode(code) if code in list(ExitCode) else ExitCode.UNEXPECTED
