"""Signs of life of a running run: whole whenever they are read, gone at its end, and minded by other hosts."""

import json
import os
import signal
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import toy
from program import Gspo

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.report.verify import verify
from gspo_cli.runlog import lock
from gspo_cli.runlog.checksums import read_checksums
from gspo_cli.runlog.lock import HEARTBEAT, Heartbeat, locked, read_heartbeat
from gspo_cli.training import rollout_queue


def test_it_says_who_writes_and_what_is_done(start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, real = [], rollout_queue.collect

    def looking(*args: object, **kwargs: object) -> object:
        found.append(json.loads((ram / "study" / "gspo-s0" / HEARTBEAT).read_text()))
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(rollout_queue, "collect", looking)
    run = toy.train(toy.recipe(start), ram / "study")
    first = found[0]
    assert first.pop("time") <= datetime.now(UTC).isoformat()
    assert first == {"pid": os.getpid(), "host": socket.gethostname(), "attempt": 1, "step": 0, "phase": "start"}
    assert not (run / HEARTBEAT).exists() and HEARTBEAT not in read_checksums(run) and verify(run).problems == []


def test_it_is_replaced_whole_while_the_run_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "INTERVAL_S", 0.0005)
    done, seen, until = [0], set[int](), time.monotonic() + 30
    with Heartbeat(tmp_path, 2, lambda: (done[0], "update")):
        while len(seen) < 20 and time.monotonic() < until:
            done[0] += 1
            seen.add(json.loads((tmp_path / HEARTBEAT).read_text())["step"])  # strict: a torn file would not parse
    assert len(seen) == 20 and list(tmp_path.iterdir()) == []


def test_a_full_disk_does_not_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "INTERVAL_S", 0.001)
    tries, real = list[int](), lock.write_text

    def refusing(path: Path, text: str) -> None:
        tries.append(1)
        if 1 < len(tries) < 5:
            raise GspoError("no", "space", "left", ExitCode.STORAGE)
        real(path, text)

    monkeypatch.setattr(lock, "write_text", refusing)
    until = time.monotonic() + 30
    with Heartbeat(tmp_path, 1, lambda: (0, "start")):
        while len(tries) < 6 and time.monotonic() < until:
            time.sleep(0.001)
    assert len(tries) >= 6


def listed(gspo_here: Gspo, study: Path) -> dict[str, Any]:
    """The one run of the study, as `runs ls` has it."""
    (line,) = gspo_here("runs", "ls", study, "--json").out.splitlines()
    return dict(json.loads(line))


def test_a_killed_runs_last_sign_is_listed(start: Path, ram: Path, gspo_here: Gspo) -> None:
    def killed() -> None:
        rollout_queue.collect = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        toy.train(toy.recipe(start), ram / "study")

    assert toy.in_child(killed, ram / "said") == -signal.SIGKILL
    run = ram / "study" / "gspo-s0"
    beat = json.loads((run / HEARTBEAT).read_text())
    beat["time"] = (datetime.now(UTC) - timedelta(minutes=7)).isoformat()
    (run / HEARTBEAT).write_text(json.dumps(beat))
    row = listed(gspo_here, run.parent)
    assert "is gone: it was killed" in row["reason"]
    assert (row["status"], row["phase"]) == ("killed", "start") and 420 <= row["last_sign_s"] < 500
    shown = gspo_here("runs", "ls", run.parent)
    assert "7 min ago" in shown.out and f"gspo train --resume {run}" in shown.err
    holder = json.loads((run / "run.lock").read_text())
    for change, status in (({"pid": os.getpid()}, "killed"), ({"host": "elsewhere"}, "silent")):  # a number given away
        (run / "run.lock").write_text(json.dumps(holder | change))
        row = listed(gspo_here, run.parent)
        assert row["status"] == status and row["reason"]
    (run / "run.lock").write_text(json.dumps(holder))
    toy.train(toy.recipe(start), run.parent)
    assert not (run / HEARTBEAT).exists()
    row = listed(gspo_here, run.parent)
    assert (row["status"], row["phase"], row["last_sign_s"]) == ("completed", None, None)


@pytest.mark.parametrize(
    ("file", "host", "seconds", "refused"),
    [(HEARTBEAT, "elsewhere", 59, True), (HEARTBEAT, "elsewhere", -5, True), (HEARTBEAT, "elsewhere", 61, False),
     (HEARTBEAT, socket.gethostname(), 1, False), ("run.lock", "elsewhere", 59, True),
     ("run.lock", "elsewhere", 61, False), ("run.lock", socket.gethostname(), 1, False)],
)  # fmt: skip
def test_another_hosts_sign_of_life_holds_the_run(
    tmp_path: Path, file: str, host: str, seconds: int, refused: bool
) -> None:
    then = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
    text = json.dumps({"pid": 7, "host": host, "step": 3, "phase": "update", "time": then, "since": then})
    (tmp_path / file).write_text(text)
    if refused:
        with pytest.raises(GspoError, match="in use") as caught, locked(tmp_path):
            pass
        assert caught.value.code is ExitCode.USER_ERROR and "elsewhere" in caught.value.why
        assert (tmp_path / file).read_text() == text
    else:
        with locked(tmp_path):
            assert json.loads((tmp_path / "run.lock").read_text())["host"] == socket.gethostname()
        assert (tmp_path / "run.lock").read_text() == ""


@pytest.mark.parametrize("text", ["", "{", "[]", '{"time": 3}', '{"time": "x", "phase": "", "step": 1, "host": ""}'])
def test_an_unreadable_one_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / HEARTBEAT).write_text(text)
    assert read_heartbeat(tmp_path) is None
    with locked(tmp_path):
        pass
