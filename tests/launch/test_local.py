"""`--jobs`: what runs at once, what each gets of the machine, and what happens when one fails or is resumed."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from program import Gspo, ok

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.events import Event, WorkerEnded, WorkerIs
from gspo_cli.launch import local
from gspo_cli.launch.local import Codes, TrainingJob, gpus_of_slot, run_jobs, threads_per_run

CHILD = """
import json, sys, time
from gspo_cli.events import BatchDone, WorkerEnded, to_line
asked = json.loads(sys.stdin.readline())
for step in range(1, asked.get("steps", 2) + 1):
    print(to_line(BatchDone(step, {"reward/mean": 0.5})), end="", flush=True)
    time.sleep(asked.get("sleep", 0))
if "error" in asked:
    print(to_line(WorkerEnded(asked["code"], asked["error"], "why", "do")), end="", flush=True)
print("noise", file=sys.stderr)
sys.exit(asked.get("code", 0))
"""
PROGRAM = (sys.executable, "-c", CHILD)


def trained(jobs: list[TrainingJob], at_once: int) -> tuple[Codes, list[tuple[str, Event]]]:
    events: list[tuple[str, Event]] = []
    return run_jobs(jobs, at_once, lambda name, event: events.append((name, event)), PROGRAM), events


def test_runs_at_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    codes, events = trained([TrainingJob(f"r{i}", {"sleep": 0.2}) for i in range(4)], 2)
    assert codes == dict.fromkeys(codes, 0) and sorted(codes) == ["r0", "r1", "r2", "r3"]
    begun = [name for name, event in events if event == WorkerIs("training")]
    assert set(begun[:2]) == {"r0", "r1"} and set(begun[2:]) == {"r2", "r3"}
    first_end = next(i for i, (_, event) in enumerate(events) if isinstance(event, WorkerEnded))
    assert len({name for name, _ in events[:first_end]}) == 2  # the second had begun before the first ended


def test_a_run_that_a_guard_stops_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    jobs = [
        TrainingJob("a", {"code": 4, "error": "the loss is not finite"}),
        TrainingJob("b", {}),
        TrainingJob("c", {}),
    ]
    codes, events = trained(jobs, 1)
    assert codes == {"a": 4, "b": 0, "c": 0}
    assert ("a", WorkerEnded(4, "a: the loss is not finite", "why", "do")) in events


def test_another_failure_ends_the_study_after_what_is_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    seen: list[str] = []
    requests = {"full": {"code": 6, "error": "no space"}, "long": {"sleep": 0.5}, "never": {}}
    jobs = [TrainingJob(name, request) for name, request in requests.items()]
    start = time.monotonic()
    with pytest.raises(GspoError, match="full: no space") as failed:
        run_jobs(jobs, 2, lambda name, event: seen.append(name) if isinstance(event, WorkerEnded) else None, PROGRAM)
    assert failed.value.code == ExitCode.STORAGE and set(seen) == {"full", "long"}
    assert time.monotonic() - start > 0.9
    with pytest.raises(GspoError, match="run dead died") as dead:
        run_jobs([TrainingJob("dead", {"code": 139})], 1, lambda *_: None, PROGRAM)
    assert "noise" in dead.value.why and dead.value.code == ExitCode.UNEXPECTED


def test_the_machine_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert [threads_per_run(n, None) for n in (1, 2, 3, 16)] == [8, 4, 2, 1]
    assert threads_per_run(2, 2) == 2
    assert [gpus_of_slot(slot, 2, ["0", "1", "2", "3"]) for slot in (0, 1)] == ["0,2", "1,3"]
    assert [gpus_of_slot(slot, 3, ["5"]) for slot in (0, 1, 2)] == ["5"] * 3
    assert gpus_of_slot(0, 2, []) is None


STOPPED = """
import json, signal, sys, time
from gspo_cli.launch.local import TrainingJob, run_jobs
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where pytest runs in a shell's background
show = lambda name, event: print(f"{name} {event}\\n", end="", flush=True)  # one write a line
run_jobs([TrainingJob(n, {"slow": n == "a"}) for n in "ab"], 2, show, (sys.executable, "-c", sys.argv[1]))
"""
SAVES = """
import json, os, signal, sys, time
from gspo_cli.events import Noted, to_line
slow = json.loads(sys.stdin.readline())["slow"]
def save(*_):
    time.sleep(slow)
    print(to_line(Noted("saved")), end="", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print(to_line(Noted("pid")), end="", flush=True)
time.sleep(60)
"""
IGNORES = SAVES.replace("sys.exit(143)", "pass") + "time.sleep(60)\n"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -2), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_the_parent_alone_makes_every_worker_save(number: int, code: int) -> None:
    """The one that it waits for when the signal comes takes longer than the other."""
    with stopped_parent(SAVES) as parent:
        lines = started_workers(parent)
        parent.send_signal(number)
        rest = parent.stdout.read()  # type: ignore[union-attr]
        assert parent.wait(timeout=20) == code
    assert rest.count("saved") == 2, (lines, rest)
    order = rest.splitlines()
    assert order.index("a WorkerIs(state='stopping')") < order.index(
        "a Noted(text='saved')"
    )  # said before the slow one has saved


@pytest.mark.slow
def test_a_second_signal_kills_what_does_not_end() -> None:
    with stopped_parent(IGNORES) as parent:
        started_workers(parent)
        parent.send_signal(signal.SIGINT)
        lines = [parent.stdout.readline() for _ in range(4)]  # type: ignore[union-attr]
        assert sum("saved" in line for line in lines) == sum("stopping" in line for line in lines) == 2
        parent.send_signal(signal.SIGINT)
        start = time.monotonic()
        parent.stdout.read()  # type: ignore[union-attr]
        assert parent.wait(timeout=20) != 0 and time.monotonic() - start < 10


def stopped_parent(worker: str) -> subprocess.Popen[str]:
    """A process with two workers that run this program."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", STOPPED, worker], text=True, **pipes)  # type: ignore[call-overload]


def started_workers(parent: subprocess.Popen[str]) -> list[str]:
    """The lines up to those with the process numbers of both workers."""
    lines: list[str] = []
    while sum("pid" in line for line in lines) < 2:
        lines.append(parent.stdout.readline())  # type: ignore[union-attr]
        assert lines[-1], lines
    return lines


def test_unfinished_runs_alone_go_to_workers(
    gspo_here: Gspo, smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("eval.bench=[]", "rollout.samples=4")
    where = ["--out", tmp_path, "--name", "one", "--steps", "1", *(part for key in keys for part in ("--set", key))]
    assert gspo_here("train", smoke, "--algo", "grpo", *where).code == 0
    seen: list[tuple[list[TrainingJob], int]] = []

    def run_jobs(jobs: list[TrainingJob], at_once: int, _on_event: Any) -> dict[str, int]:
        seen.append((jobs, at_once))
        return {job.name: ExitCode.OK for job in jobs}

    monkeypatch.setattr(local, "run_jobs", run_jobs)
    assert (
        gspo_here("train", smoke, "--algo", "grpo", "--seeds", "1-2", "--jobs", "2", *where).code == 0
    )  # never begins
    done = gspo_here("train", "--resume", tmp_path / "one", "--jobs", "2")
    assert done.code == 0 and "grpo-s0 is complete" in done.err, done.err
    assert len(seen) == 1  # no plan of the second command was recorded: its run had not begun

    more = ("--steps", "2", "--allow-change", "train.steps")
    ok(gspo_here("train", "--resume", tmp_path / "one", "--jobs", "3", *more))
    jobs, at_once = seen[-1]
    assert [job.name for job in jobs] == ["grpo-s0"] and at_once == 3
    assert jobs[0].request["go_on"] is True and jobs[0].request["changes"] == {"train": {"steps": 2}}
