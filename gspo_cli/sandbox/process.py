"""A running program: two pipes with deadlines and byte caps, and a kill that is certain.

No wait is without a deadline, and nothing ever waits for end-of-file alone: a descendant may hold the pipe.
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

CHUNK = 1 << 16
STDERR_KEPT = 1 << 16


class Ended(Exception):
    """The other side closed the pipe."""


class Late(Exception):
    """The deadline passed."""

    def __init__(self, over_s: float = 0.0) -> None:
        super().__init__(over_s)
        self.over_s = over_s
        """Seconds after it that we noticed: much where the machine, or we, stood still."""


@dataclass(frozen=True)
class Finished:
    """What became of a program that ran by itself."""

    stdout: bytes
    stderr: bytes
    """Its last 64 KiB."""
    code: int | None
    """None: it was killed, because it was late or said too much."""
    late: bool
    flooded: bool
    waited_s: float = 0.0
    """See `Process.waited_s`, where it was late."""


class Child(Protocol):
    """What a sandbox hands over: a started program with its three pipes."""

    pid: int
    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    def kill(self) -> None:
        """SIGKILL to all of it."""

    def wait(self) -> int:
        """Its exit code, once it has ended."""


class Spawned:
    """A program that `subprocess` started in a session of its own."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdin and popen.stdout and popen.stderr
        self._popen, self.pid = popen, popen.pid
        self.stdin, self.stdout, self.stderr = popen.stdin, popen.stdout, popen.stderr

    def kill(self) -> None:
        """See `Child`."""
        with suppress(ProcessLookupError):  # not yet waited for, so the number is still its own
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """See `Child`."""
        return self._popen.wait()


class Process:
    """A running child, spoken to with deadlines and caps."""

    def __init__(self, child: Child, on_end: Callable[[], None] = lambda: None) -> None:
        self._child, self._on_end = child, on_end
        self._code: int | None = None
        self._lock = threading.Lock()
        self._in, self._out, self._err = child.stdin.fileno(), child.stdout.fileno(), child.stderr.fileno()
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)

    def write(self, data: bytes, deadline: float) -> None:
        """Writes all of `data` before `deadline` (of time.monotonic).

        Errors: Ended, Late.
        """
        view = memoryview(data)
        while view:
            self._wait(self._in, selectors.EVENT_WRITE, deadline)
            try:
                view = view[os.write(self._in, view[:CHUNK]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                raise Ended from error

    def read(self, size: int, deadline: float) -> bytes:
        """Exactly `size` bytes of stdout.

        Errors: Ended, Late.
        """
        parts: list[bytes] = []
        while size:
            self._wait(self._out, selectors.EVENT_READ, deadline)
            try:
                parts.append(os.read(self._out, min(size, CHUNK)))
            except BlockingIOError:
                continue
            if not parts[-1]:
                raise Ended
            size -= len(parts[-1])
        return b"".join(parts)

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        left = deadline - time.monotonic()
        with selectors.PollSelector() as selector:
            selector.register(descriptor, event)
            if left <= 0 or not selector.select(left):
                raise Late(time.monotonic() - deadline)

    def run(self, stdin: bytes, deadline: float, cap: int) -> Finished:
        """Feeds `stdin` and gathers up to `cap` bytes of stdout until the program ends or `deadline` passes."""
        pending = memoryview(stdin)
        out, err = bytearray(), bytearray()
        ended = os.pidfd_open(self._child.pid)  # its end shows here even while a descendant holds the pipes
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
                        elif not _take(key.fd, out if key.fd == self._out else err):
                            selector.unregister(key.fd)
                        del err[:-STDERR_KEPT]
            while not running and len(out) <= cap and _take(self._out, out):
                pass
        finally:
            os.close(ended)
        flooded = len(out) > cap
        late = running and not flooded
        waited_s = max(self.waited_s(), time.monotonic() - deadline) if late else 0.0
        code = self.kill()
        return Finished(bytes(out), bytes(err), None if running else code, late, flooded, waited_s)

    def _feed(self, pending: memoryview) -> memoryview:
        try:
            return pending[os.write(self._in, pending[:CHUNK]) :] if pending else pending
        except BlockingIOError:
            return pending
        except BrokenPipeError:  # it reads no further, which is its right
            return pending[:0]

    def waited_s(self) -> float:
        """Seconds that the program, still running, was ready to run but had no core: how busy the machine was."""
        family, waits = [self._child.pid], [0]
        for pid in family:
            with suppress(OSError, IndexError, ValueError):
                waits.append(int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]))
                family += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split())
        return max(waits) / 1e9

    def last_words(self) -> str:
        """What stderr holds right now, as one line for a message."""
        text = bytearray()
        _take(self._err, text)
        return " ".join(text.decode("utf-8", "replace").split())[:300]

    def kill(self) -> int:
        """SIGKILL to the whole session, at once, and the exit code (of a program that had ended: its own)."""
        with self._lock:
            if self._code is None:
                self._child.kill()
                self._code = self._child.wait()
                for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
                    with suppress(BrokenPipeError):
                        pipe.close()
                self._on_end()
            return self._code


def _take(descriptor: int, into: bytearray) -> bool:
    """Moves what is there, up to a chunk; False when nothing is."""
    try:
        data = os.read(descriptor, CHUNK)
    except BlockingIOError:
        return False
    into += data
    return bool(data)
