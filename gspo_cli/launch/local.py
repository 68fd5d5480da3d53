"""Runs on one machine: one process each, several at once, and one run over several processes with torchrun."""

import atexit
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gspo_cli.distributed import LAUNCHED_AT, RESTART_REASON, Ranks, free_port, join, leave
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.events import Event, RunEmit, WorkerEnded, WorkerIs, from_line
from gspo_cli.launch.watch import WATCHER, Watcher, watch_each_other


def same_package(target: str) -> tuple[str, ...]:
    """The command that calls `module:function` of this package in another process; further words are its arguments.

    Without `-P` Python would search the working directory first: in a clone of the sources, a child would run the
    checkout and not the installed package that started it.
    """
    module, _, name = target.partition(":")
    return (sys.executable, "-P", "-c", f"import sys; from {module} import {name}; sys.exit({name}())")


Codes = dict[str, int | None]
"""Run -> its exit code; None if its worker was lost."""
WORKER = same_package("gspo_cli.training.worker:main")


@dataclass(frozen=True)
class TrainingJob:
    """A run to train in a worker process."""

    name: str
    request: dict[str, Any]
    """What `gspo_cli.training.worker` reads: plain JSON."""


def run_jobs(jobs: list[TrainingJob], at_once: int, emit: RunEmit, program: tuple[str, ...] = WORKER) -> Codes:
    """Train all jobs in order, `at_once` at a time, and return each run's exit code.

    `emit` is called from several threads with a run's name and its worker's events. A run that a training guard
    stops counts as a result. After any other failure no further run starts, and the running ones finish first.
    The first signal that asks this process to end makes the workers save and end, a second one kills them.
    Errors: GspoError of the first run that failed.
    """
    running = set[subprocess.Popen[str]]()
    waiting, codes, errors = iter(list(jobs)), Codes(), list[GspoError]()
    names = set[str]()  # of the running ones
    devices, lock, stop = visible_gpus(), threading.Lock(), threading.Event()

    def take() -> TrainingJob | None:
        with lock:
            return None if stop.is_set() else next(waiting, None)

    def work(slot: int) -> None:
        gpus = gpus_of_slot(slot, at_once, devices)
        environment = os.environ | ({} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus})
        while (job := take()) is not None:
            names.add(job.name)
            for event in run_worker(job, environment, program, running):
                if isinstance(event, WorkerEnded):
                    names.discard(job.name)
                    codes[job.name] = event.code
                    if event.failed:
                        errors.append(event.error())
                        stop.set()
                emit(job.name, event)

    # wait(), not Thread.join(): an exception in join() marks a living thread as ended, so the next join() returns early
    with ThreadPoolExecutor(at_once) as pool, ending_signals(_raise, (signal.SIGTERM, signal.SIGHUP)):
        slots = [pool.submit(work, slot) for slot in range(min(at_once, len(jobs)))]
        try:
            wait(slots)
        except (KeyboardInterrupt, SystemExit):
            stop.set()
            for process in list(running):
                process.terminate()
            for name in sorted(names):
                emit(name, WorkerIs("stopping"))
            try:
                wait(slots)
            except (KeyboardInterrupt, SystemExit):
                for process in list(running):
                    process.kill()
                wait(slots)
                raise
            raise
    for slot in slots:
        slot.result()
    if errors:
        raise errors[0]
    return codes


ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


@contextmanager
def ending_signals(
    handler: Callable[[int, object], None], numbers: Sequence[signal.Signals] = ENDING
) -> Iterator[None]:
    """Calls the handler for these signals, but for one that was ignored before (`nohup`)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _raise(number: int, _: object) -> None:
    """SIGTERM and SIGHUP raise SystemExit with their exit code, as Ctrl-C raises KeyboardInterrupt."""
    raise SystemExit(128 + number)


def run_worker(
    job: TrainingJob,
    environment: dict[str, str],
    program: tuple[str, ...] = WORKER,
    running: set[subprocess.Popen[str]] | None = None,
) -> Iterator[Event]:
    """Train one run in a worker process and yield its events as they come; the process is in `running` while it lives.

    The worker has a process group of its own, so a terminal's Ctrl-C reaches this process alone.

    If closed early, it asks the worker to save and end, and waits; the worker also ends if this process dies.
    """
    yield WorkerIs("training")
    own: WorkerEnded | None = None
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(
            program, stdin=pipe, stdout=pipe, stderr=output, env=environment, text=True, process_group=0
        ) as process,
    ):
        assert process.stdin and process.stdout
        running = set() if running is None else running
        running.add(process)
        try:
            with suppress(BrokenPipeError):  # it died before reading; its exit code and output say why
                process.stdin.write(json.dumps(job.request) + "\n")
                process.stdin.close()
            for line in process.stdout:
                event = from_line(line)
                if isinstance(event, WorkerEnded):
                    own = event
                else:
                    yield event
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            running.discard(process)
        code = process.wait()
        output.seek(max(0, output.seek(0, 2) - 2000))
        tail = output.read().decode(errors="replace").strip()
    if code == ExitCode.OK:
        yield WorkerEnded(code)
    elif own is not None:
        yield WorkerEnded(code, f"{job.name}: {own.message}", own.why, own.hint)
    else:
        last = tail.splitlines()[-1] if tail else "nothing"
        memory = " (as the kernel sends when memory runs out)" if code == -signal.SIGKILL else ""
        how = f"signal {-code}{memory}" if code < 0 else f"exit code {code}"
        why = f"{how}; its last output was: {last}"
        yield WorkerEnded(code, f"run {job.name} died", why, "train it alone on this machine to see more")


def threads_per_run(runs_at_once: int, wanted: int | None) -> int:
    """CPU threads for each of several runs at once: an equal share of the cores, at most what the recipe asks for."""
    return max(1, min(wanted or sys.maxsize, len(os.sched_getaffinity(0)) // runs_at_once))


def gpus_of_slot(slot: int, slots: int, devices: list[str]) -> str | None:
    """CUDA_VISIBLE_DEVICES for a slot. With fewer GPUs than slots, some slots share one. None without GPUs."""
    if not devices:
        return None
    return ",".join(devices[slot::slots] or [devices[slot % len(devices)]])


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [part for part in listed.split(",") if part.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


ABORTED = -signal.SIGABRT
RANK = (sys.executable, "-P", "-c", "import sys; from gspo_cli.launch.watch import report_to_launcher; "
        "report_to_launcher(); from gspo_cli.cli.main import run; sys.exit(run())")  # fmt: skip
"""A process of a launch; it reports before anything large is imported."""
LAST_WORDS_S = 30.0
"""Time for the other ranks to end by themselves after one has failed."""


def launched_by_torchrun() -> bool:
    """Whether torchrun started this process, alone or as one of several."""
    return "WORLD_SIZE" in os.environ


def join_ranks() -> Ranks:
    """Join the other processes that a launcher started, and leave them cleanly when the program exits."""
    ranks = join()
    atexit.register(leave, ranks)
    if ranks.size > 1 and WATCHER not in os.environ:
        watch_each_other(ranks)
    return ranks


def launch(nproc: int) -> ExitCode:
    """Run this same command in `nproc` connected processes, and return the exit code of the first that failed.

    If one aborts (SIGABRT, as C libraries do; `exit_rank` removes the one known cause), all are restarted once from the
    last checkpoint, with a warning and an event in `events.jsonl`. On GPUs they are not: there NCCL aborts a process
    whose connection failed.
    Errors: GspoError if a signal ended a process, which then reports nothing itself, or if one hangs.
    """
    os.environ[LAUNCHED_AT] = datetime.now(UTC).isoformat()
    rank, code = run_ranks(nproc)
    if code == ABORTED and not visible_gpus():
        os.environ[RESTART_REASON] = f"rank {rank} was killed by signal {-code} (SIGABRT)"
        sys.stderr.write(f"warning: {os.environ[RESTART_REASON]}; restarting once, from the last checkpoint if any\n")
        rank, code = run_ranks(nproc)
    if -code in ENDING:
        raise GspoError(
            f"interrupted by {signal.Signals(-code).name}",
            "it came before or after the training of a run",
            "the same command again, or gspo train --resume once the study's folder is there",
            ExitCode(128 - code),
        )
    if code < 0:
        raise GspoError(
            f"rank {rank} was killed by signal {-code}",
            "the system, a library or another program sent it (9 often means out of memory; 6 on a GPU, that NCCL lost "
            "a connection)",
            "gspo train --resume continues from the last checkpoint, on any number of ranks",
            ExitCode.ENGINE,
        )
    return ExitCode(code) if code in list(ExitCode) else ExitCode.UNEXPECTED


def run_ranks(nproc: int) -> tuple[int, int]:
    """One attempt: the rank that failed first and its exit code, negative for a signal; code 0 if none failed.

    The first signal that asks this process to end is passed on to the ranks, which save and end, however long that
    takes. A second one kills them. Errors: GspoError if a rank hangs; all are killed then.
    """
    ranks, received = list[subprocess.Popen[bytes]](), list[int]()

    def pass_on(number: int, _: object) -> None:
        received.append(number)
        if len(received) > 1:
            raise SystemExit(128 + number)
        for process in ranks:
            process.send_signal(number)

    with Watcher(nproc) as watcher, ending_signals(pass_on):
        place = {"WORLD_SIZE": str(nproc), "LOCAL_WORLD_SIZE": str(nproc), "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(free_port()), WATCHER: f"127.0.0.1:{watcher.port}"}  # fmt: skip
        try:
            for number in map(str, range(nproc)):
                environment = os.environ | place | {"RANK": number, "LOCAL_RANK": number}
                ranks.append(subprocess.Popen((*RANK, *sys.argv[1:]), env=environment, process_group=0))
            rank, code = first_failure(ranks, watcher)
        finally:
            for process in ranks:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
    return rank, -received[0] if received and code == ABORTED else code


def first_failure(ranks: list[subprocess.Popen[bytes]], watcher: Watcher) -> tuple[int, int]:
    """Waits until all ranks have ended, or one has failed and the others had time to; see `run_ranks`. A rank that only
    lost another one does not speak for the one that was told to end."""
    first, until = (0, int(ExitCode.OK)), math.inf
    while True:
        codes = [process.poll() for process in ranks]
        failed = [(rank, code) for rank, code in enumerate(codes) if code]
        if failed and until == math.inf:  # the others may fail at the same moment, because of it
            first = min(failed, key=lambda of: (of[1] != ABORTED, of[1] > 0))
            until = time.monotonic() + LAST_WORDS_S
        if None not in codes or time.monotonic() > until:
            told = [(rank, code) for rank, code in failed if code - 128 in ENDING or -code in ENDING]
            return told[0] if told and first[1] == ExitCode.ENGINE else first
        if until == math.inf:
            living = {rank: process.pid for rank, process in enumerate(ranks) if process.poll() is None}
            if error := watcher.hung(living):
                raise error
        time.sleep(0.1)
