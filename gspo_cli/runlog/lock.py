"""One writer per run: a lock that the kernel releases, and a heartbeat for readers and for other hosts."""

import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

from gspo_cli.distributed import ACTIVITY
from gspo_cli.errors import GspoError
from gspo_cli.runlog.fs import refusals, write_text
from gspo_cli.runlog.log import now

LOCK, HEARTBEAT = "run.lock", "heartbeat.json"
INTERVAL_S = 10.0
"""Time between heartbeats."""
MISSED_S = 2.5 * INTERVAL_S
"""Age of the last heartbeat from which a run counts as silent."""
SILENT_S = 60.0
"""A writer on another host counts as dead after this long without a sign of life."""

_locked_files: set[int] = set()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder, creating it if needed, until the context ends.

    Errors: GspoError naming the process that holds it, and its host.
    Not covered: two hosts that open a run within the same second on storage where locks do not reach across hosts.
    """
    with refusals(folder / LOCK):
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    _locked_files.add(file)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise GspoError(
                f"{folder} is in use", _describe_holder(folder), "wait for that process to end, or use another --name"
            ) from error
        refuse_other_host(folder)
        holder = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now()}).encode()
        with refusals(folder / LOCK):
            os.ftruncate(file, 0)
            os.pwrite(file, holder, 0)
        try:
            yield
        finally:
            os.ftruncate(file, 0)
    finally:
        _locked_files.discard(file)
        os.close(file)


def _close_locks() -> None:
    """A forked child shares its parent's locks, and would keep them after the parent dies."""
    while _locked_files:
        os.close(_locked_files.pop())


os.register_at_fork(after_in_child=_close_locks)


def refuse_other_host(folder: Path) -> None:
    """Errors: GspoError if another host locked the run or sent a heartbeat less than `SILENT_S` seconds ago."""
    for sign in filter(None, (_read_holder(folder), read_heartbeat(folder))):
        host, age_s = sign["host"], sign["age_s"]
        if host != socket.gethostname() and age_s < SILENT_S:
            raise GspoError(
                f"{folder} is in use",
                f"host {host} showed a sign of life {max(0, round(age_s))} s ago",
                f"wait for its process to end; if it was killed, try again {SILENT_S:.0f} s after that sign",
            )


def _describe_holder(folder: Path) -> str:
    if holder := _read_holder(folder):
        return f"process {holder['pid']} on {holder['host']} has been writing to it since {holder['since']}"
    return "another process is writing to it"


def _read_holder(folder: Path) -> dict[str, Any] | None:
    return _read_sign(folder / LOCK, "since", ("pid", "host", "since"))


def _read_sign(path: Path, time: str, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """These keys of a lock or heartbeat with its `age_s`; None if it is missing or unreadable."""
    try:
        sign = json.loads(path.read_text(encoding="utf-8"))
        age = datetime.now(UTC) - datetime.fromisoformat(sign[time])
        found = {key: int(sign[key]) if key == "pid" else sign[key] for key in keys}
        return found | {"age_s": round(age.total_seconds(), 1)}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def is_silent(age_s: float | None) -> bool:
    """Whether the last heartbeat is so old that two were missed."""
    return age_s is not None and age_s > MISSED_S


def _is_free(folder: Path) -> bool:
    """Whether no process holds the kernel's lock on a run; asked only where its heartbeats have stopped, since asking
    holds the lock for a moment."""
    try:
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def dead_writer(folder: Path) -> int | None:
    """The process that locked a run on this host and ended without a release; None if it lives or is unknown.

    Its number may be another process's by now: then the kernel's lock tells, once two heartbeats were missed.
    """
    holder = _read_holder(folder)
    if holder is None or holder["host"] != socket.gethostname():
        return None
    beat = read_heartbeat(folder)
    if beat is not None and is_silent(beat["age_s"]) and _is_free(folder):
        return int(holder["pid"])
    try:
        state = Path(f"/proc/{holder['pid']}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return int(holder["pid"]) if Path("/proc/self").exists() else None
    except (OSError, IndexError):
        return None
    return int(holder["pid"]) if state in "ZX" else None


class Heartbeat:
    """Writes the heartbeat file from a thread while the context lasts, even while the main thread waits."""

    def __init__(self, folder: Path, attempt: int, where: Callable[[], tuple[int, str]]) -> None:
        self.folder, self.attempt = folder, attempt
        self.where = where
        """Returns the number of finished rollout batches and the current phase."""
        self._ended = Event()
        self._thread = Thread(target=self._beat_until_ended, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        remove_heartbeat(self.folder)

    def beat(self) -> None:
        """Write one heartbeat. Errors: GspoError (exit code 6) if the disk refuses."""
        step, phase = self.where()
        writer = {"pid": os.getpid(), "host": socket.gethostname(), "attempt": self.attempt}
        writer |= {"ranks": ACTIVITY.ranks} if ACTIVITY.ranks else {}
        write_text(self.folder / HEARTBEAT, json.dumps(writer | {"step": step, "phase": phase, "time": now()}))

    def _beat_until_ended(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            try:
                self.beat()
            except GspoError:
                continue  # a disk that refuses this refuses the log too, and that ends the run


def read_heartbeat(folder: Path) -> dict[str, Any] | None:
    """The last heartbeat of a run with its `age_s`, negative if clocks differ; None if missing or unreadable."""
    return _read_sign(folder / HEARTBEAT, "time", ("phase", "step", "host"))


def slowest_rank(folder: Path) -> str | None:
    """Of a run on several processes: the one that the others wait for, its phase and since when, by the last heartbeat;
    None if there is none such."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        ranks = json.loads((folder / HEARTBEAT).read_text(encoding="utf-8"))["ranks"]
        rank, of = max(ranks.items(), key=lambda item: (item[1]["silent_s"] // INTERVAL_S, not item[1]["waits"]))
        silent = f", silent for {of['silent_s']:.0f} s" if of["silent_s"] > INTERVAL_S else ""
        return f"rank {rank} of {len(ranks)} has been in phase {of['phase']} for {of['for_s']:.0f} s{silent}"
    return None


def remove_heartbeat(folder: Path) -> None:
    """Remove the heartbeat of a run that ended or was killed."""
    (folder / HEARTBEAT).unlink(missing_ok=True)
