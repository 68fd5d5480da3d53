"""One writer a run: a lock that the kernel frees when the process dies, whatever kills it.

Some network file systems do not carry locks from host to host, so a run that another host showed signs of life of a
minute ago is refused too.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gspo_cli.errors import GspoError
from gspo_cli.runlog.fs import storage_error
from gspo_cli.runlog.heartbeat import SILENT_S, age_s, read_heartbeat
from gspo_cli.runlog.log import now

NAME = "run.lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a run folder, which is created if need be, until the context ends.

    Errors: GspoError naming the process that holds it, and its host.
    Not covered: two hosts that open a run within the same second, where locks do not reach from one to the other.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise storage_error(folder / NAME, error) from error
    _held.add(file)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise GspoError(
                f"{folder} is in use", _holder(folder), "wait for that process to end, or use another --name"
            ) from error
        refuse_other_host(folder)
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now()}).encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(file, 0)
    finally:
        _held.discard(file)
        os.close(file)


def refuse_other_host(folder: Path) -> None:
    """Errors: GspoError when another host took this run, or showed a sign of life, less than `SILENT_S` ago."""
    try:
        holder = json.loads((folder / NAME).read_text())
        signs = [{"host": holder["host"], "age_s": age_s(holder["since"])}]
    except (OSError, ValueError, KeyError, TypeError):
        signs = []
    signs += [beat] if (beat := read_heartbeat(folder)) else []
    for sign in signs:
        if sign["host"] != socket.gethostname() and sign["age_s"] < SILENT_S:
            raise GspoError(
                f"{folder} is in use",
                f"host {sign['host']} showed a sign of life {max(0, round(sign['age_s']))} s ago",
                f"wait for that process to end; if it was killed, try again {SILENT_S:.0f} s after its last sign",
            )


_held: set[int] = set()


def _let_go() -> None:
    """A forked child would share the lock and keep it when this process dies."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


def _holder(folder: Path) -> str:
    try:
        holder = json.loads((folder / NAME).read_text())
        return f"process {holder['pid']} on {holder['host']} has been writing it since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process is writing it"
