"""`--jobs`: what runs at once, what each gets of the machine, and what happens when one fails."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from gspo_cli.cli.live_study import StudyView
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.launch.job import Job
from gspo_cli.launch.local import run_all, share_of_gpus, threads_each

CHILD = """
import json, sys, time
asked = json.loads(sys.stdin.readline())
for step in range(1, asked.get("steps", 2) + 1):
    print(json.dumps({"step": step, "values": {"reward/mean": 0.5}}), flush=True)
    time.sleep(asked.get("sleep", 0))
if "error" in asked:
    print(json.dumps({"error": [asked["error"], "why", "do"]}), flush=True)
print("noise", file=sys.stderr)
sys.exit(asked.get("code", 0))
"""
PROGRAM = (sys.executable, "-c", CHILD)


def trained(jobs: list[Job], at_once: int) -> tuple[dict[str, int], list[tuple[str, dict[str, Any]]]]:
    events: list[tuple[str, dict[str, Any]]] = []
    return run_all(jobs, at_once, lambda name, event: events.append((name, event)), PROGRAM), events


def test_runs_at_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    codes, events = trained([Job(f"r{i}", {"sleep": 0.2}) for i in range(4)], 2)
    assert codes == dict.fromkeys(codes, 0) and sorted(codes) == ["r0", "r1", "r2", "r3"]
    order = [(name, next(iter(event))) for name, event in events]
    begun = [name for name, what in order if what == "started"]
    assert set(begun[:2]) == {"r0", "r1"} and set(begun[2:]) == {"r2", "r3"}
    first_end = next(i for i, (_, what) in enumerate(order) if what == "ended")
    assert len({name for name, _ in order[:first_end]}) == 2  # the second had begun before the first ended


def test_a_run_that_a_guard_stops_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    jobs = [Job("a", {"code": 4, "error": "the loss is not finite"}), Job("b", {}), Job("c", {})]
    codes, events = trained(jobs, 1)
    assert codes == {"a": 4, "b": 0, "c": 0}
    assert next(e for n, e in events if n == "a" and "ended" in e)["reason"] == "a: the loss is not finite"


def test_another_failure_ends_the_study_after_what_is_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    seen: list[str] = []
    jobs = [Job("full", {"code": 6, "error": "no space"}), Job("long", {"sleep": 0.5}), Job("never", {})]
    start = time.monotonic()
    with pytest.raises(GspoError, match="full: no space") as failed:
        run_all(jobs, 2, lambda name, event: seen.append(name) if "ended" in event else None, PROGRAM)
    assert failed.value.code == ExitCode.STORAGE and set(seen) == {"full", "long"}
    assert time.monotonic() - start > 0.9
    with pytest.raises(GspoError, match="run dead ended") as dead:
        run_all([Job("dead", {"code": 139})], 1, lambda *_: None, PROGRAM)
    assert "noise" in dead.value.why and dead.value.code == ExitCode.UNEXPECTED


def test_the_machine_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert [threads_each(n, None) for n in (1, 2, 3, 16)] == [8, 4, 2, 1]
    assert threads_each(2, 2) == 2
    assert [share_of_gpus(slot, 2, ["0", "1", "2", "3"]) for slot in (0, 1)] == ["0,2", "1,3"]
    assert [share_of_gpus(slot, 3, ["5"]) for slot in (0, 1, 2)] == ["5"] * 3
    assert share_of_gpus(0, 2, []) is None


def test_the_table_shows_every_run_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("gspo_cli.cli.live_study.time.monotonic", lambda: now[0])
    view = StudyView(["a", "b", "c"], steps=10)
    assert view.left() is None
    view.event("a", {"started": True})
    now[0] = 50.0
    view.event("a", {"step": 5, "values": {"reward/mean": 0.25}})
    assert view.left() == 250.0  # ten seconds a step, 25 to go
    view.event("b", {"ended": 4, "reason": "not finite"})
    assert view.left() == 150.0  # a run that was stopped needs no time
    table = view.table()
    cells = list(zip(*(column.cells for column in table.columns), strict=True))
    assert [row[:4] for row in cells] == [
        ("a", "training", "5/10", "0.250"),
        ("b", "stopped: not finite", "0/10", "n/a"),
        ("c", "waiting", "0/10", "n/a"),
    ]
    assert str(table.title) == "1 of 3 runs done, 2:30 left"
