"""Who is silent, who has been in one phase for too long, and who is blamed."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gspo_cli.distributed import ACTIVITY, Activity, Ranks
from gspo_cli.errors import ExitCode
from gspo_cli.launch import watch
from gspo_cli.launch.watch import Watcher, report_to


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    with Watcher(2) as watcher:
        yield watcher


def heard(watcher: Watcher, rank: int, ago_s: float, **said: object) -> None:
    """The rank said so then."""
    watcher.said[rank] = time.monotonic() - ago_s, Activity().as_table() | {"phase": "update"} | said


@pytest.fixture
def stopped() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    os.kill(process.pid, signal.SIGSTOP)
    while not watch.is_stopped(process.pid):
        time.sleep(0.01)
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("ago_s", "is_stopped", "found"), [(31, True, True), (29, True, False), (31, False, False), (301, False, True)]
)
def test_silence(watcher: Watcher, stopped: int, ago_s: float, is_stopped: bool, found: bool) -> None:
    heard(watcher, 1, ago_s)
    error = watcher.hung({0: os.getpid(), 1: stopped if is_stopped else os.getpid()})
    assert (error is not None) == found
    if error:
        assert "rank 1 in phase update" in error.message and "rank 0" not in error.message
        assert error.code == ExitCode.ENGINE


def test_a_rank_that_has_ended_is_not_missed(watcher: Watcher) -> None:
    heard(watcher, 1, 999)
    assert watcher.hung({0: os.getpid()}) is None


def test_a_watcher_that_was_stopped_itself_blames_nobody(watcher: Watcher) -> None:
    heard(watcher, 1, 400)
    watcher._asked_at -= 395
    assert watcher.hung() is None


@pytest.mark.parametrize(
    ("waits", "named"), [((True, False), "rank 1 in"), ((True, True), "rank 0 in"), ((False, True), "rank 0 in")]
)
def test_the_one_that_the_others_wait_for_is_named(watcher: Watcher, waits: tuple[bool, bool], named: str) -> None:
    heard(watcher, 0, 1, for_s=800.0, limit_s=700.0, waits=waits[0])
    heard(watcher, 1, 1, for_s=10.0, limit_s=700.0, waits=waits[1])
    error = watcher.hung()
    assert error is not None and error.message.startswith(f"hung: {named}") and "700 s" in error.why
    assert error.message.count("rank") == 1


def test_a_phase_may_last_ten_times_as_long_as_before_and_at_least_hang_s() -> None:
    activity = Activity(least_limit_s=60.0)
    activity.enter("update")
    assert activity.as_table()["limit_s"] == 4 * 3600  # not measured yet
    activity.since -= 5
    activity.enter("update")
    assert activity.as_table()["limit_s"] == 60
    activity.since -= 20
    activity.enter("update")
    assert activity.as_table()["limit_s"] == pytest.approx(200, rel=0.01)


def test_ranks_report_and_hear_of_each_other(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(_seconds: float) -> None:
        raise OSError("enough")

    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    monkeypatch.setattr(ACTIVITY, "phase", "probe")
    monkeypatch.setattr(ACTIVITY, "ranks", {})
    assert not report_to(("127.0.0.1", watcher.port), 1, 5.0)
    assert ACTIVITY.ranks["1"]["phase"] == "probe" and ACTIVITY.ranks["0"]["phase"] == "start"
    assert ACTIVITY.ranks["1"]["silent_s"] < 5


def test_a_watcher_that_does_not_answer_is_noticed_and_one_that_is_gone_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address, began = mute.getsockname(), time.monotonic()
        assert report_to(address, 0, 0.1) and time.monotonic() - began > 0.2
    assert not report_to(address, 0, 0.1)


def test_without_a_launcher_rank_0_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    codes = list[int]()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setattr(Ranks, "broadcast", lambda _, work: work())
    monkeypatch.setattr(watch, "SILENT_S", 0.5)
    monkeypatch.setattr(watch, "report_to", lambda *_: False)
    monkeypatch.setattr(watch.os, "_exit", lambda code: (codes.append(code), ended.set(), threading.Event().wait()))
    watch.watch_each_other(Ranks(0, 2))  # rank 1 never says anything
    assert ended.wait(10) and codes == [ExitCode.ENGINE]
