"""A running program: pipes with deadlines and byte caps, and a kill that cannot fail.

Every wait has a deadline, and none waits for end-of-file alone: a descendant may hold the pipe open.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from gspo_cli.sandbox.memory import MemoryWatch

CHUNK = 1 << 16
STDERR_KEPT = 1 << 16


class PipeClosed(Exception):
    """The other side closed the pipe."""


class DeadlinePassed(Exception):
    """The deadline passed."""

    def __init__(self, late_by_s: float) -> None:
        super().__init__(late_by_s)
        self.late_by_s = late_by_s
        """How much later we noticed: a long time if the machine, or this process, was stalled."""


@dataclass(frozen=True)
class Finished:
    """The result of a program that ran on its own."""

    stdout: bytes
    stderr: bytes
    """Its last 64 KiB."""
    code: int | None
    """None if it was killed for running too long or printing too much."""
    timed_out: bool
    output_exceeded: bool
    cpu_wait_s: float = 0.0
    """See `Process.cpu_wait_s`; only after a timeout."""
    stopped: str = ""
    """`memory limit` or `storage limit` if its processes together used more than they may."""


class Child(Protocol):
    """A started program with its three pipes, as a sandbox provides it."""

    pid: int
    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    def kill(self) -> None:
        """SIGKILL to all of its processes."""

    def wait(self) -> int:
        """Wait for its end; the exit code."""


class Spawned:
    """A `Child` that `subprocess` started in a new session."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdin and popen.stdout and popen.stderr
        self._popen, self.pid = popen, popen.pid
        self.stdin, self.stdout, self.stderr = popen.stdin, popen.stdout, popen.stderr

    def kill(self) -> None:
        with suppress(ProcessLookupError):  # it is not reaped yet, so its pid cannot have been reused
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        return self._popen.wait()


class Process:
    """A running child, with deadlines and caps on all that is read and written."""

    def __init__(
        self, child: Child, on_end: Callable[[], None], excess: Callable[[list[int]], bool] = lambda _: False
    ) -> None:
        self._child, self._on_end = child, on_end
        self.pid = child.pid
        self.stopped = ""
        self.excess = excess
        self._code: int | None = None
        self._lock = threading.Lock()
        self._in, self._out, self._err = child.stdin.fileno(), child.stdout.fileno(), child.stderr.fileno()
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)

    def write(self, data: bytes, deadline: float) -> None:
        """Write all of `data` before `deadline` (of time.monotonic). Errors: PipeClosed, DeadlinePassed."""
        view = memoryview(data)
        while view:
            self._wait(self._in, selectors.EVENT_WRITE, deadline)
            try:
                view = view[os.write(self._in, view[:CHUNK]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                raise PipeClosed from error

    def read(self, size: int, deadline: float) -> bytes:
        """Exactly `size` bytes of stdout. Errors: PipeClosed, DeadlinePassed."""
        parts: list[bytes] = []
        while size:
            self._wait(self._out, selectors.EVENT_READ, deadline)
            try:
                parts.append(os.read(self._out, min(size, CHUNK)))
            except BlockingIOError:
                continue
            if not parts[-1]:
                raise PipeClosed
            size -= len(parts[-1])
        return b"".join(parts)

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        left = deadline - time.monotonic()
        with selectors.PollSelector() as selector:
            selector.register(descriptor, event)
            if left <= 0 or not selector.select(left):
                raise DeadlinePassed(time.monotonic() - deadline)

    def run(self, stdin: bytes, deadline: float, cap: int) -> Finished:
        """Feed `stdin` and collect up to `cap` bytes of stdout until the program ends or `deadline` passes."""
        pending = memoryview(stdin)
        out, err = bytearray(), bytearray()
        ended = os.pidfd_open(self._child.pid)  # signals its end even while a descendant holds the pipes
        try:
            with selectors.PollSelector() as selector:
                for descriptor in (self._out, self._err, ended):
                    selector.register(descriptor, selectors.EVENT_READ)
                selector.register(self._in, selectors.EVENT_WRITE)
                running = True
                while running and len(out) <= cap:
                    left = deadline - time.monotonic()
                    ready = selector.select(left) if left > 0 else []
                    if not ready:
                        break
                    for key, _ in ready:
                        if key.fd == self._in:
                            pending = self._feed(pending)
                            if not pending:
                                selector.unregister(self._in)
                                self._child.stdin.close()
                        elif key.fd == ended:
                            running = False
                        elif not _read_chunk(key.fd, out if key.fd == self._out else err):
                            selector.unregister(key.fd)
                        del err[:-STDERR_KEPT]
            while not running and len(out) <= cap and _read_chunk(self._out, out):
                pass
        finally:
            os.close(ended)
        exceeded = len(out) > cap
        timed_out = running and not exceeded
        cpu_wait_s = max(self.cpu_wait_s(), time.monotonic() - deadline) if timed_out else 0.0
        code = self.kill()
        return Finished(
            bytes(out), bytes(err), None if running else code, timed_out, exceeded, cpu_wait_s, self.stopped
        )

    def _feed(self, pending: memoryview) -> memoryview:
        try:
            return pending[os.write(self._in, pending[:CHUNK]) :] if pending else pending
        except BlockingIOError:
            return pending
        except BrokenPipeError:  # a program need not read all of its input
            return pending[:0]

    def cpu_wait_s(self) -> float:
        """Seconds that the still running program was ready to run but had no core: how busy the machine was."""
        family, waits = [self._child.pid], [0]
        for pid in family:
            with suppress(OSError, IndexError, ValueError):
                waits.append(int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]))
                family += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split())
        return max(waits) / 1e9

    def stderr_line(self) -> str:
        """What stderr holds right now, as one line for a message."""
        text = bytearray()
        _read_chunk(self._err, text)
        return " ".join(text.decode("utf-8", "replace").split())[:300]

    def stop(self, reason: str) -> None:
        """SIGKILL to the whole session, from another thread than the one that reads; that one will find it ended."""
        with self._lock:
            if self._code is None:
                self.stopped = reason
                self._child.kill()

    def kill(self) -> int:
        """SIGKILL to the whole session at once; the exit code, which is its own if the program had ended."""
        with self._lock:
            if self._code is None:
                self._child.kill()
                self._code = self._child.wait()
                for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
                    with suppress(BrokenPipeError):
                        pipe.close()
                self._on_end()
            return self._code


def _read_chunk(descriptor: int, into: bytearray) -> bool:
    """Append what is there, up to a chunk; False if there is nothing."""
    try:
        data = os.read(descriptor, CHUNK)
    except BlockingIOError:
        return False
    into += data
    return bool(data)


class ProcessSet:
    """The running processes of a sandbox; safe to use from several threads."""

    def __init__(self, memory: int, sweep: Callable[[], None] = lambda: None) -> None:
        self._lock = threading.Lock()
        self._processes: set[Process] = set()
        self._closed = False
        self._watch = MemoryWatch(memory, self.running, sweep)

    def running(self) -> list[Process]:
        """Those that have not ended."""
        with self._lock:
            return list(self._processes)

    def add(
        self, child: Child, on_end: Callable[[], None], excess: Callable[[list[int]], bool] = lambda _: False
    ) -> Process:
        """The child as a process that leaves the set when it ends.

        Errors: OSError after `kill_all`, so that nothing starts after an interrupt.
        """

        def end() -> None:
            with self._lock:
                self._processes.discard(process)
            on_end()

        process = Process(child, end, excess)
        with self._lock:
            self._processes.add(process)
            closed = self._closed
        self._watch.start()
        if closed:
            process.kill()
            raise OSError("the sandbox is closed")
        return process

    def kill_all(self) -> None:
        """Kill all processes and refuse new ones."""
        with self._lock:
            self._closed = True
            processes = list(self._processes)
        for process in processes:
            process.kill()
