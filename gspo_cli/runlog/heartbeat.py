"""Signs of life: a small file that a running run replaces every few seconds, for readers and for other hosts.

It says nothing that a result depends on, is not sealed, and is gone when the run has ended; a killed run leaves its
last one behind.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

from gspo_cli.errors import GspoError
from gspo_cli.runlog.fs import write_text
from gspo_cli.runlog.log import now

NAME = "heartbeat.json"
EVERY_S = 10.0
SILENT_S = 60.0
"""After so long without a sign a writer on another host is taken for dead."""


class Heartbeat:
    """While the context lasts, a thread writes the file; it lives as long as the process, whatever that waits for."""

    def __init__(self, folder: Path, attempt: int, where: Callable[[], tuple[int, str]]) -> None:
        self.folder, self.attempt = folder, attempt
        self.where = where
        """Gives rollout batches done and what is being done now."""
        self._ended = Event()
        self._thread = Thread(target=self._go_on, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        clear(self.folder)

    def beat(self) -> None:
        """One sign of life.

        Errors: GspoError (exit code 6) when the disk refuses.
        """
        step, phase = self.where()
        who = {"pid": os.getpid(), "host": socket.gethostname(), "attempt": self.attempt}
        write_text(self.folder / NAME, json.dumps(who | {"step": step, "phase": phase, "time": now()}))

    def _go_on(self) -> None:
        while not self._ended.wait(EVERY_S):
            try:
                self.beat()
            except GspoError:
                continue  # a disk that refuses this refuses the log too, and that ends the run


def read_heartbeat(folder: Path) -> dict[str, Any] | None:
    """The last sign of life in a run's folder with its `age_s`, which is negative where clocks differ; None if there is
    none, or none that can be read."""
    try:
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
        return {"phase": found["phase"], "step": found["step"], "host": found["host"], "age_s": age_s(found["time"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def age_s(time: str) -> float:
    """Seconds since a time as the logs write it.

    Errors: ValueError or TypeError for a text that is none.
    """
    return round((datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds(), 1)


def clear(folder: Path) -> None:
    """Removes what a run that has ended, or was killed, left of it."""
    (folder / NAME).unlink(missing_ok=True)
