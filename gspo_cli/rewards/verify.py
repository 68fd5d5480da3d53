"""Computer algebra at arm's length: math-verify in worker processes that can be killed.

Its own time limit is an alarm, which raises in any thread but the main one and does not reach into a long computation.
Here each comparison has `DEADLINE_S`; a worker that takes longer is killed and replaced. The wait for a new worker
counts, so that even the first bomb is over in time, but two thirds are left to the comparison.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from gspo_cli.errors import ExitCode, GspoError

DEADLINE_S = 3.0
SLOW_S = 0.25  # from here on a comparison may have to be killed, so another worker starts
START_S = 60.0  # a loaded machine may be slow to import
MAX_ITEMS = 1000  # of one worker: computer algebra keeps what it has seen
MAX_KNOWN = 20_000
PROGRAM = Path(__file__).with_name("verify_worker.py")
PASSED_ON = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "SYSTEMROOT")

Outcome = Literal["same", "different", "timeout", "memory", "crash"]


class Worker:
    """One process, and the lines to and from it."""

    def __init__(self) -> None:
        env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            env=env | {"PYTHONHASHSEED": "0"},
        )  # fmt: skip
        self.items = 0
        self.ready = False

    def compare(self, gold: str, answer: str, when_slow: Callable[[], None]) -> Outcome:
        """Whether two answers are the same; anything but `same` and `different` leaves the worker unfit for more.

        `when_slow` is called once `SLOW_S` have passed.
        Errors: GspoError when the worker cannot start at all.
        """
        deadline = time.monotonic() + DEADLINE_S
        if not self.ready:
            self.ready = self._read(START_S) == {"ready": True}
            if not self.ready:
                self.close()
                raise GspoError(
                    "the checker of mathematical answers cannot start",
                    f"`{sys.executable} {PROGRAM}` ended or kept silent",
                    "run that command to see why; it needs the package math-verify",
                    ExitCode.ENGINE,
                )
            deadline = max(deadline, time.monotonic() + DEADLINE_S * 2 / 3)
        self.items += 1
        assert self.process.stdin is not None
        line = json.dumps({"id": self.items, "gold": gold, "answer": answer}) + "\n"
        try:
            self.process.stdin.write(line.encode("ascii"))
        except BrokenPipeError:
            return "crash"
        reply = self._read(SLOW_S)
        if reply is None:
            when_slow()
            reply = self._read(deadline - time.monotonic())
        if reply is None:
            return "timeout"
        if reply == {"id": self.items, "error": "memory"}:
            return "memory"
        if reply.keys() != {"id", "same"} or reply["id"] != self.items or not isinstance(reply["same"], bool):
            return "crash"
        return "same" if reply["same"] else "different"

    def _read(self, seconds: float) -> dict[str, Any] | None:
        """The next line; None after `seconds`, an empty reply when the process has ended or speaks no sense."""
        assert self.process.stdout is not None
        poll, deadline, data = select.poll(), time.monotonic() + seconds, b""
        poll.register(self.process.stdout)
        while not data.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            piece = os.read(self.process.stdout.fileno(), 4096)
            if not piece:
                return {}
            data += piece
        try:
            reply = json.loads(data)
        except ValueError:
            return {}
        return reply if isinstance(reply, dict) else {}

    def close(self) -> None:
        """Ends the process and waits until it is gone."""
        self.process.kill()
        self.process.wait()
        self.hang_up()

    def hang_up(self) -> None:
        """Closes this end of the pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Verifier:
    """As many workers as threads ask at once; none until one does."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], Outcome] = {}

    def compare(self, gold: str, answer: str) -> Outcome:
        """Whether math-verify takes the answer for the gold one. An equal pair is not computed again: the samples of a
        group often agree, and a bomb among them costs its deadline once.

        Errors: GspoError when no worker can start.
        """
        known = self._known.get((gold, answer))
        if known is not None:
            return known
        worker = self._take()
        try:
            outcome = worker.compare(gold, answer, self._spare)
        except BaseException:  # such as Ctrl-C: a reply still to come would be taken for the next one
            worker.close()
            raise
        self._give_back(worker, outcome)
        if outcome != "crash":
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[gold, answer] = outcome
        return outcome

    def _take(self) -> Worker:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.process.poll() is None:
                    return worker
                worker.close()
        return Worker()

    def _spare(self) -> None:
        """Starts a worker unless one is idle."""
        with self._lock:
            if not self._idle:
                self._idle.append(Worker())

    def _give_back(self, worker: Worker, outcome: Outcome) -> None:
        if outcome not in ("same", "different") or worker.items >= MAX_ITEMS:
            worker.close()
            self._spare()
        else:
            with self._lock:
                self._idle.append(worker)

    def close(self) -> None:
        """Ends the workers that are not at work."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    def forget(self) -> None:
        """In a forked child: the workers are the parent's, not its own to wait for."""
        for worker in self._idle:
            worker.process.returncode = 0
            worker.hang_up()
        self.__init__()  # type: ignore[misc]


VERIFIER = Verifier()
atexit.register(VERIFIER.close)
os.register_at_fork(after_in_child=VERIFIER.forget)
