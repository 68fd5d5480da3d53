"""Runs of a study as tasks of a Ray cluster.

A task holds the GPUs and CPUs of its run, starts the run's process and passes on what that tells; only text goes over
the wire. So a run that crashes leaves its worker alone, and a worker that is lost takes its run's process with it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.launch.job import Event, Job, follow

REACHABLE_S = 5.0
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # or it would send statistics of use over the network
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # or it would print lost workers on stdout
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or it would warn of a coming change; `train_here` hides the GPUs
}
EVENTS_MEMORY = 100 * 2**20
"""Bytes of Ray's own store on a cluster that is started here; events are all that it holds."""


def train_here(text: str, gpus: int) -> Iterator[str]:
    """The task: trains one run on the machine where Ray placed it, with the GPUs that Ray gave it."""
    asked = json.loads(text)
    hidden = {} if gpus else {"CUDA_VISIBLE_DEVICES": ""}
    for event in follow(Job(asked["name"], asked["asked"]), os.environ | hidden):
        yield json.dumps(event)


class RayCluster:
    """See `schedule.Cluster`. Its handles are streams of what the tasks yield."""

    def __init__(self, ray: Any, gpus: int, threads: int) -> None:
        self.ray, self.gpus = ray, gpus
        self.task = ray.remote(train_here)
        self.needs = {"num_gpus": gpus, "num_cpus": threads, "max_retries": 0, "num_returns": "streaming"}

    def submit(self, job: Job) -> Any:
        """Queues a job."""
        text = json.dumps({"name": job.name, "asked": job.asked})
        return self.task.options(name=job.name, **self.needs).remote(text, self.gpus)

    def next_event(self, placed: Mapping[Any, Job]) -> tuple[Any, Event]:
        """The next event of any of them."""
        (stream,), _ = self.ray.wait(list(placed), num_returns=1)
        name = placed[stream].name
        try:
            return stream, json.loads(self.ray.get(next(stream)))
        except StopIteration:  # a signal came between the last event and its arrival here
            return stream, interrupted(name)
        except self.ray.exceptions.RayError as error:
            return stream, how_it_ended(name, error, self.ray.exceptions)

    def cancel(self, stream: Any) -> None:
        """Interrupts the task at the run's next event."""
        self.ray.cancel(stream)

    def close(self) -> None:
        """Leaves the cluster; one that was started here ends."""
        self.ray.shutdown()


def interrupted(name: str) -> Event:
    """The last event of a task that the driver's own end took away."""
    words = [f"run {name} was interrupted", "the study was", "go on with gspo train --resume STUDY --launcher ray"]
    return {"ended": int(ExitCode.SIGINT), "error": words}


def how_it_ended(name: str, error: Exception, kinds: Any) -> Event:
    """The last event of a task that could not give it; `kinds` is `ray.exceptions`."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if isinstance(error, kinds.TaskCancelledError):
        return interrupted(name)
    if isinstance(error, kinds.RayTaskError | kinds.RuntimeEnvSetupError):
        hint = "every node needs the same Python and the same gspo with the extra ray (docs/clusters.md)"
        return {
            "ended": int(ExitCode.UNEXPECTED),
            "error": [f"no process could be started for {name}", lines[-1], hint],
        }
    return {
        "ended": None,
        "error": [f"run {name} lost its worker", lines[0].partition(". ")[0], "the cluster's own logs say more"],
    }


def connect(gpus: int | None, threads: int) -> RayCluster:
    """The cluster that RAY_ADDRESS names, or without it one on this machine alone, with room for at least one run.

    `gpus` of a run default to 1 where the cluster has any; `threads` are its CPUs.
    Errors: GspoError when Ray is not installed, the cluster cannot be reached, or no machine of it can hold a run.
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
        _knock(address)
        ray.init(address, log_to_driver=False, logging_level="ERROR", **(here if address == "local" else {}))
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:  # Ray uses all of them
        raise GspoError(
            f"no Ray cluster at {address}",
            str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
            "on its head node: export RAY_ADDRESS=auto; from a worker node RAY_ADDRESS=HEAD:6379; RAY_AUTH_MODE=token "
            "if it asks for one; or unset RAY_ADDRESS to use this machine alone",
        ) from error
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.SIGTERM))  # Ray's own handler exits with 15
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    try:
        return RayCluster(ray, gpus_each(machines, gpus, threads), threads)
    except GspoError:
        ray.shutdown()
        raise


def gpus_each(machines: list[dict[str, float]], gpus: int | None, threads: int) -> int:
    """GPUs of each run: what was asked for, else 1 where a machine has any.

    Errors: GspoError when no machine can hold a run.
    """
    most = int(max((m.get("GPU", 0) for m in machines), default=0))
    wanted = min(1, most) if gpus is None else gpus
    have = "; ".join(sorted({f"{m.get('GPU', 0):g} GPUs and {m.get('CPU', 0):g} CPUs" for m in machines}))
    if wanted > most:
        raise GspoError(
            f"no machine of the cluster has {wanted} GPUs for a run",
            f"its machines have {have or 'nothing'}",
            f"--gpus-per-run {most}" if most else "--gpus-per-run 0 trains on CPUs; or add a machine with GPUs",
        )
    if not any(m.get("GPU", 0) >= wanted and m.get("CPU", 0) >= threads for m in machines):
        raise GspoError(
            f"no machine of the cluster has {threads} CPUs and {wanted} GPUs for a run",
            f"its machines have {have or 'nothing'}",
            "--set model.threads=N asks for fewer CPUs",
        )
    return wanted


def _knock(address: str) -> None:
    """Ray itself would try for minutes.

    Errors: OSError when nothing listens at HOST:PORT.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=REACHABLE_S).close()
