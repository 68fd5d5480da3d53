"""Train the runs of a study as tasks of a Ray cluster.

A task reserves the GPUs and CPUs of its run, starts the run's worker process, and forwards its events as text. A run
that crashes therefore leaves its Ray worker alone, and a Ray worker that is lost takes its run's process with it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gspo_cli.errors import ExitCode, GspoError, reason
from gspo_cli.events import Event, RunEmit, Warned, WorkerEnded, WorkerIs, from_line, to_line
from gspo_cli.launch.local import Codes, TrainingJob, run_worker

RETRIES = 3
"""How often a run is restarted, each time from its newest checkpoint."""
STOPPED_BY_SIGNAL = (ExitCode.SIGHUP, ExitCode.SIGINT, ExitCode.SIGTERM)

REACHABLE_S = 5.0
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # or it sends usage statistics over the network
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # or it prints lost workers on stdout
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or it warns of a coming change; `train_on_node` hides the GPUs
}
EVENTS_MEMORY = 100 * 2**20
"""Bytes of Ray's object store on a cluster that is started here; it holds only events."""


def run_on_cluster(jobs: list[TrainingJob], cluster: RayCluster, emit: RunEmit) -> Codes:
    """Train all jobs, as many at once as the cluster has room for, and return each run's exit code.

    `emit` is called with a run's name and its events. A run that a training guard stops counts as a result. After any
    other failure no further run starts, and the running ones finish first.
    Errors: GspoError of the first run that failed, or that was lost more than `RETRIES` times.
    """
    placed: dict[Any, TrainingJob] = {cluster.submit(job): job for job in jobs}
    started, restarts, codes, errors = set[Any](), Counter[str](), Codes(), list[GspoError]()
    interrupted = False

    def follow() -> None:
        """Handle events until every job has ended."""
        while placed:
            handle, event = cluster.next_event(placed)
            job, stopping = placed[handle], interrupted or bool(errors)
            started.add(handle)
            if isinstance(event, WorkerEnded):
                del placed[handle]
                if should_restart(event.code) and not stopping and restarts[job.name] < RETRIES:
                    restarts[job.name] += 1
                    text = f"{event.message} ({event.why}); restart {restarts[job.name]} of {RETRIES}"
                    emit(job.name, Warned(text))
                    again = replace(job, request=job.request | {"go_on": True})
                    placed[cluster.submit(again)] = again
                    event = WorkerIs("waiting")
                else:
                    codes[job.name] = event.code
                    if event.failed and not stopping:
                        errors.append(event.error())
                        for waiting in placed.keys() - started:
                            cluster.cancel(waiting)
            emit(job.name, event)

    try:
        follow()
    except (KeyboardInterrupt, SystemExit):
        interrupted = True
        for handle in placed:
            cluster.cancel(handle)
        follow()
        raise
    if errors:
        raise errors[0]
    return codes


def should_restart(code: int | None) -> bool:
    """Whether a worker was lost or ended by a signal. Errors that a run itself reports are final."""
    return code is None or code < 0 or code in STOPPED_BY_SIGNAL


class RayCluster:
    """A place where jobs wait for a machine, run, and send events. A job's handle is Ray's stream of its task."""

    def __init__(self, ray: Any, gpus: int, threads: int) -> None:
        self.ray, self.gpus = ray, gpus
        self.task = ray.remote(train_on_node)
        self.needs = {"num_gpus": gpus, "num_cpus": threads, "max_retries": 0, "num_returns": "streaming"}

    def submit(self, job: TrainingJob) -> Any:
        """Queue a job and return its handle."""
        text = json.dumps({"name": job.name, "request": job.request})
        return self.task.options(name=job.name, **self.needs).remote(text, self.gpus)

    def next_event(self, placed: Mapping[Any, TrainingJob]) -> tuple[Any, Event]:
        """Wait for the next event of any job.

        The last event of each is `WorkerEnded`; its exit code is None if the worker was lost and the code is unknown.
        """
        (stream,), _ = self.ray.wait(list(placed), num_returns=1)
        name = placed[stream].name
        try:
            return stream, from_line(self.ray.get(next(stream)))
        except StopIteration:  # a signal arrived between the last event and its delivery
            return stream, _interrupted(name)
        except self.ray.exceptions.RayError as error:
            return stream, ended_event(name, error, self.ray.exceptions)

    def cancel(self, stream: Any) -> None:
        """Interrupt a task at its next event: the run saves if it has started, and its last event still comes."""
        self.ray.cancel(stream)

    def close(self) -> None:
        """Leave the cluster, or stop it if it was started here."""
        self.ray.shutdown()


def train_on_node(text: str, gpus: int) -> Iterator[str]:
    """The Ray task: train one run on the machine where Ray placed it, with the GPUs that Ray assigned."""
    job = json.loads(text)
    hidden = {} if gpus else {"CUDA_VISIBLE_DEVICES": ""}
    for event in run_worker(TrainingJob(job["name"], job["request"]), os.environ | hidden):
        yield to_line(event)


def ended_event(name: str, error: Exception, exceptions: Any) -> WorkerEnded:
    """The last event for a task that could not send its own; `exceptions` is `ray.exceptions`."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if isinstance(error, exceptions.TaskCancelledError):
        return _interrupted(name)
    if isinstance(error, exceptions.RayTaskError | exceptions.RuntimeEnvSetupError):
        hint = "every node needs the same Python and the same gspo with the extra ray (docs/clusters.md)"
        return WorkerEnded(ExitCode.UNEXPECTED, f"cannot start a process for {name}", lines[-1], hint)
    why = lines[0].partition(". ")[0]
    return WorkerEnded(None, f"run {name} lost its worker", why, "see the cluster's own logs")


def _interrupted(name: str) -> WorkerEnded:
    """The last event for a task that was stopped with the study."""
    hint = "continue with gspo train --resume STUDY --launcher ray"
    return WorkerEnded(ExitCode.SIGINT, f"run {name} was interrupted", "so was the study", hint)


def connect(gpus: int | None, threads: int) -> RayCluster:
    """Connect to the cluster in RAY_ADDRESS, or start one on this machine, and check that it can hold a run.

    A run uses `threads` CPUs and `gpus` GPUs, by default 1 if the cluster has any.
    Errors: GspoError if Ray is not installed, the cluster cannot be reached, or no machine can hold a run.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise GspoError(
            "Ray is not installed", f"--launcher ray needs it ({error})", "pip install 'gspo[ray]' on every machine"
        ) from error
    address = os.environ.get("RAY_ADDRESS") or "local"
    here = {"num_cpus": len(os.sched_getaffinity(0)), "object_store_memory": EVENTS_MEMORY, "include_dashboard": False}
    try:
        _check_reachable(address)
        ray.init(address, log_to_driver=False, logging_level="ERROR", **(here if address == "local" else {}))
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:  # Ray raises all of them
        raise GspoError(
            f"no Ray cluster at {address}",
            reason(error),
            "on the head node: export RAY_ADDRESS=auto; on a worker node: RAY_ADDRESS=HEAD:6379; add "
            "RAY_AUTH_MODE=token if it asks for a token; or unset RAY_ADDRESS to use this machine alone",
        ) from error
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.SIGTERM))  # Ray's own handler exits with 15
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    try:
        return RayCluster(ray, gpus_per_run(machines, gpus, threads), threads)
    except GspoError:
        ray.shutdown()
        raise


def gpus_per_run(machines: list[dict[str, float]], gpus: int | None, threads: int) -> int:
    """GPUs of each run: as requested, else 1 if any machine has one. Errors: GspoError if no machine can hold a run."""
    most = int(max((m.get("GPU", 0) for m in machines), default=0))
    wanted = min(1, most) if gpus is None else gpus
    have = "; ".join(sorted({f"{m.get('GPU', 0):g} GPUs and {m.get('CPU', 0):g} CPUs" for m in machines}))
    why = f"its machines have {have or 'nothing'}"
    if wanted > most:
        raise GspoError(
            f"no machine of the cluster has {wanted} GPUs for a run", why,
            f"--gpus-per-run {most}" if most else "train on CPUs with --gpus-per-run 0, or add a machine with GPUs",
        )  # fmt: skip
    if not any(m.get("GPU", 0) >= wanted and m.get("CPU", 0) >= threads for m in machines):
        raise GspoError(
            f"no machine of the cluster has {threads} CPUs and {wanted} GPUs for a run", why,
            "ask for fewer CPUs with --set model.threads=N",
        )  # fmt: skip
    return wanted


def _check_reachable(address: str) -> None:
    """Errors: OSError if nothing listens at HOST:PORT. Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=REACHABLE_S).close()
