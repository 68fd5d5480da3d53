"""A running program: pipes with deadlines and byte caps, and a kill that cannot fail.

Every wait has a deadline, and none waits for end-of-file alone: a descendant may hold the pipe open.
"""

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

from gspo_cli.sandbox.memory import held_bytes, shared_once

CHUNK = 1 << 16
STDERR_KEPT = 1 << 16
WATCH_S = 0.02
"""Seconds between two looks at the memory of the programs."""


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
    """`memory limit` if its processes together used more than they may."""


class Process:
    """A running program in a session of its own, with deadlines and caps on all that is read and written."""

    def __init__(self, popen: subprocess.Popen[bytes], on_end: Callable[[], None]) -> None:
        assert popen.stdin and popen.stdout and popen.stderr
        self._popen, self._on_end = popen, on_end
        self.pid = popen.pid
        self.stopped = ""
        self._code: int | None = None
        self._lock = threading.Lock()
        self._pipes = popen.stdin, popen.stdout, popen.stderr
        self._in, self._out, self._err = (pipe.fileno() for pipe in self._pipes)
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
        ended = os.pidfd_open(self.pid)  # signals its end even while a descendant holds the pipes
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
                                self._pipes[0].close()
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
        family, waits = [self.pid], [0]
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
                self._signal()

    def kill(self) -> int:
        """SIGKILL to the whole session at once; the exit code, which is its own if the program had ended."""
        with self._lock:
            if self._code is None:
                self._signal()
                self._code = self._popen.wait()
                for pipe in self._pipes:
                    with suppress(BrokenPipeError):
                        pipe.close()
                self._on_end()
            return self._code

    def _signal(self) -> None:
        with suppress(ProcessLookupError):  # it is not reaped yet, so its pid cannot have been reused
            os.killpg(self.pid, signal.SIGKILL)


def _read_chunk(descriptor: int, into: bytearray) -> bool:
    """Append what is there, up to a chunk; False if there is nothing."""
    try:
        data = os.read(descriptor, CHUNK)
    except BlockingIOError:
        return False
    into += data
    return bool(data)


class ProcessSet:
    """The running processes of a sandbox; safe to use from several threads.

    A thread stops the programs whose processes hold more than `memory` bytes together (see `memory.py`).
    """

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self._lock = threading.Lock()
        self._processes: set[Process] = set()
        self._closed = self._watched = False

    def add(self, popen: subprocess.Popen[bytes], on_end: Callable[[], None] = lambda: None) -> Process:
        """The program as a process that leaves the set when it ends.

        Errors: OSError after `kill_all`, so that nothing starts after an interrupt.
        """

        def end() -> None:
            with self._lock:
                self._processes.discard(process)
            on_end()

        process = Process(popen, end)
        with self._lock:
            self._processes.add(process)
            closed = self._closed
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, name="gspo-memory-watch", daemon=True).start()
        if closed:
            process.kill()
            raise OSError("the sandbox is closed")
        return process

    def _watch(self) -> None:
        """Watch until no process is left."""
        period = WATCH_S
        while True:
            time.sleep(period)
            with self._lock:
                processes = list(self._processes)
                if not processes:
                    self._watched = False
                    return
            period = WATCH_S
            for process in processes:
                family = [process.pid]
                held = held_bytes(family)
                if held > self.memory and shared_once(family) > self.memory:
                    process.stop("memory limit")
                elif self.memory / 2 < held <= self.memory:  # it may be on its way
                    period = WATCH_S / 5

    def kill_all(self) -> None:
        """Kill all processes and refuse new ones."""
        with self._lock:
            self._closed = True
            processes = list(self._processes)
        for process in processes:
            process.kill()
