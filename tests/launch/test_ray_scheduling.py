"""A study on a cluster: what is begun again, what is a result, what ends the study; on a cluster of played roles."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.events import BatchDone, Event, Warned, WorkerEnded, WorkerIs
from gspo_cli.launch.local import Codes, TrainingJob
from gspo_cli.launch.ray_cluster import RETRIES, connect, gpus_per_run, run_on_cluster, should_restart

DONE = WorkerEnded(0)
LOST = WorkerEnded(None, "run a lost its worker", "it died", "look")
STEP = BatchDone(1, {})


def ended(code: int) -> Event:
    """A run that ended with a code other than 0."""
    return WorkerEnded(code, "what", "why", "do")


class Played:
    """Plays for each try of a run the events that were written down, in turns; with room for so many runs at once."""

    def __init__(self, room: int, **tries: list[list[Event | type[BaseException]]]) -> None:
        self.room, self.tries = room, tries
        self.submitted: list[tuple[str, bool]] = []
        self.left: dict[int, list[Any]] = {}
        self.told: Counter[int] = Counter()
        self.cancelled: list[str] = []

    def submit(self, job: TrainingJob) -> int:
        self.submitted.append((job.name, job.request.get("go_on", False)))
        handle = len(self.submitted)
        self.left[handle] = [WorkerIs("training"), *self.tries[job.name].pop(0)]
        return handle

    def next_event(self, placed: Mapping[int, TrainingJob]) -> tuple[int, Event]:
        cancelled = [h for h in placed if placed[h].name in self.cancelled]
        handle = min(cancelled or sorted(placed)[: self.room], key=lambda h: self.told[h])
        self.told[handle] += 1
        event = self.left[handle].pop(0) if handle not in cancelled else ended(ExitCode.SIGINT)
        if isinstance(event, type):
            raise event
        return handle, event

    def cancel(self, handle: int) -> None:
        self.cancelled.append(self.submitted[handle - 1][0])


def trained(cluster: Played, *names: str) -> tuple[Codes, list[tuple[str, Event]]]:
    """Codes and events of jobs with these names."""
    events: list[tuple[str, Event]] = []
    jobs = [TrainingJob(name, {}) for name in names]
    return run_on_cluster(jobs, cluster, lambda name, event: events.append((name, event))), events


def test_a_lost_run_is_restarted_where_it_was() -> None:
    cluster = Played(2, a=[[STEP, LOST], [STEP, ended(-9)], [ended(143)], [DONE]], b=[[DONE]])
    codes, events = trained(cluster, "a", "b")
    assert codes == {"a": 0, "b": 0}
    assert [go_on for name, go_on in cluster.submitted if name == "a"] == [False, True, True, True]
    assert [name for name, event in events if event == WorkerIs("waiting")] == ["a"] * 3
    (first, *_) = [event.text for name, event in events if isinstance(event, Warned)]
    assert first == "run a lost its worker (it died); restart 1 of 3"


def test_a_run_is_restarted_a_few_times_only() -> None:
    cluster = Played(1, a=[[LOST] for _ in range(9)])
    with pytest.raises(GspoError, match="run a lost its worker") as lost:
        trained(cluster, "a")
    assert len(cluster.submitted) == 1 + RETRIES and lost.value.code == ExitCode.UNEXPECTED


def test_what_a_run_says_itself_stands() -> None:
    says = [code for code in ExitCode if not should_restart(code)]
    assert [int(code) for code in says] == [0, 1, 2, 3, 4, 5, 6]
    assert all(map(should_restart, (None, -9, -6, 129, 130, 143)))
    codes, events = trained(Played(1, a=[[ended(ExitCode.GUARD)]], b=[[DONE]]), "a", "b")
    assert codes == {"a": 4, "b": 0} and ("a", ended(ExitCode.GUARD)) in events


def test_another_failure_ends_the_study_after_what_is_in_progress() -> None:
    cluster = Played(2, full=[[ended(6)]], long=[[STEP, STEP, STEP, DONE]], never=[[DONE]])
    events: list[tuple[str, Event]] = []
    with pytest.raises(GspoError, match="what") as failed:
        jobs = [TrainingJob(n, {}) for n in ("long", "full", "never")]
        run_on_cluster(jobs, cluster, lambda n, e: events.append((n, e)))
    assert failed.value.code == ExitCode.STORAGE and cluster.cancelled == ["never"]
    assert [name for name, event in events if isinstance(event, WorkerEnded)] == ["full", "never", "long"]
    assert ("long", DONE) in events


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_study_has_its_runs_saved(kind: type[BaseException]) -> None:
    cluster = Played(1, a=[[kind]], b=[[DONE]])
    with pytest.raises(kind):
        trained(cluster, "a", "b")
    assert cluster.cancelled == ["a", "b"] and len(cluster.submitted) == 2


def test_a_run_needs_one_machine_that_holds_it() -> None:
    machines = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 64.0}]
    assert [gpus_per_run(machines, wanted, 8) for wanted in (None, 0, 2)] == [1, 0, 2]
    assert gpus_per_run(machines[1:], None, 1) == 0
    with pytest.raises(GspoError, match="no machine of the cluster has 3 GPUs") as gpus:
        gpus_per_run(machines, 3, 1)
    assert gpus.value.why == "its machines have 0 GPUs and 64 CPUs; 2 GPUs and 8 CPUs"
    assert gpus.value.hint == "--gpus-per-run 2"
    with pytest.raises(GspoError, match="no machine of the cluster has 16 CPUs and 1 GPUs"):
        gpus_per_run(machines, 1, 16)


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nonsense"])
def test_a_cluster_that_is_not_there_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'gspo[ray]'")
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(GspoError, match=f"no Ray cluster at {address}") as refused:
        connect(None, 1)
    assert "RAY_ADDRESS" in refused.value.hint
