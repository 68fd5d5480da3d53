"""All runs of a study on a cluster: what is begun again when a machine is lost, and what ends the study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.launch.job import Event, Job, as_error, shown

RETRIES = 3
"""How often a run is begun again; each time it goes on from its newest checkpoint."""

STOPPED_FROM_OUTSIDE = (ExitCode.SIGHUP, ExitCode.SIGINT, ExitCode.SIGTERM)


class Cluster(Protocol):
    """A place where jobs wait for a machine, run, and tell."""

    def submit(self, job: Job) -> Any:
        """Queues a job; a hashable handle."""

    def next_event(self, placed: Mapping[Any, Job]) -> tuple[Any, Event]:
        """Waits for the next event of any of these handles.

        The last one of each is `ended`, with the exit code, or None where a worker was lost and nobody knows.
        """

    def cancel(self, handle: Any) -> None:
        """Ends a job, which saves first if it has begun; its `ended` event still comes."""


def begun_again(code: int | None) -> bool:
    """Whether a run deserves another try: its worker was lost, or a signal ended it. What a run says itself stands."""
    return code is None or code < 0 or code in STOPPED_FROM_OUTSIDE


def run_all(todo: list[Job], cluster: Cluster, on_event: Callable[[str, Event], None]) -> dict[str, int]:
    """Trains all, as many at a time as the cluster has room for, and gives each run's exit code.

    `on_event` is called with a run's name and its events, and `waiting` before it is begun again. A run that a training
    guard stops is a result; after any other failure no further run is begun, those in progress are waited for, and the
    error is raised.
    Errors: GspoError of the first run that failed otherwise, or was lost more than `RETRIES` times.
    """
    study = _Study(cluster, on_event)
    for job in todo:
        study.submit(job)
    try:
        while study.placed:
            study.take()
    except (KeyboardInterrupt, SystemExit):
        study.stopping = True
        for handle in study.placed:
            cluster.cancel(handle)
        while study.placed:
            study.take()
        raise
    if study.errors:
        raise study.errors[0]
    return study.codes


class _Study:
    """What is placed, and what has come of it."""

    def __init__(self, cluster: Cluster, on_event: Callable[[str, Event], None]) -> None:
        self.cluster, self.on_event = cluster, on_event
        self.placed: dict[Any, Job] = {}
        self.begun: set[Any] = set()
        self.tries: Counter[str] = Counter()
        self.codes: dict[str, int] = {}
        self.errors: list[GspoError] = []
        self.stopping = False

    def submit(self, job: Job) -> None:
        self.placed[self.cluster.submit(job)] = job

    def take(self) -> None:
        """Takes in one event."""
        handle, event = self.cluster.next_event(self.placed)
        job = self.placed[handle]
        self.begun.add(handle)
        if "ended" not in event:
            return self.on_event(job.name, event)
        del self.placed[handle]
        if begun_again(event["ended"]) and not self.stopping and self.tries[job.name] < RETRIES:
            return self.begin_again(job, event)
        self.end(job, event)

    def begin_again(self, job: Job, ended: Event) -> None:
        self.tries[job.name] += 1
        message, why, _ = ended["error"]
        self.on_event(
            job.name, {"warnings": [f"{message} ({why}); it is begun again, {self.tries[job.name]} of {RETRIES} times"]}
        )
        self.on_event(job.name, {"waiting": True})
        self.submit(replace(job, asked=job.asked | {"go_on": True}))

    def end(self, job: Job, event: Event) -> None:
        code = ExitCode.UNEXPECTED if event["ended"] is None else event["ended"]
        self.codes[job.name] = code
        if code not in (ExitCode.OK, ExitCode.GUARD) and not self.stopping:
            self.errors.append(as_error(event))
            self.stopping = True
            for handle in self.placed.keys() - self.begun:
                self.cluster.cancel(handle)
        self.on_event(job.name, shown(event | {"ended": code}))
