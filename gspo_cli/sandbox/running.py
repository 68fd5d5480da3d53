"""The programs that run right now, so that an interrupt can end them all."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gspo_cli.sandbox.process import Child, Process


class Running:
    """A set of processes, safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[Process] = set()
        self._closed = False

    def add(self, child: Child, on_end: Callable[[], None]) -> Process:
        """The process, which leaves the set when it ends.

        Errors: OSError after `kill_all`, so that nothing starts behind an interrupt.
        """

        def end() -> None:
            with self._lock:
                self._processes.discard(process)
            on_end()

        process = Process(child, end)
        with self._lock:
            self._processes.add(process)
            closed = self._closed
        if closed:
            process.kill()
            raise OSError("the sandbox is closed")
        return process

    def kill_all(self) -> None:
        """Ends every one of them, for good."""
        with self._lock:
            self._closed = True
            processes = list(self._processes)
        for process in processes:
            process.kill()
