"""One writer a run: a lock that the kernel frees when the process dies, whatever kills it."""

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
from gspo_cli.runlog.log import now

NAME = "run.lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a run folder, which is created if need be, until the context ends.

    Errors: GspoError naming the process that holds it, and its host.
    Not covered: network file systems on which locks do not reach other hosts.
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
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now()}).encode(), 0)
        yield
    finally:
        _held.discard(file)
        os.close(file)


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
