"""Computer algebra at arm's length: a filter for answers that it could not digest, and math-verify in worker processes
that can be killed."""

import atexit
import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.rewards.math.normalize import MAX_LENGTH

MAX_NESTING = 30
MAX_POWERS = 2  # a power of a power; not a power of that
MAX_EXPONENT = 1000
MAX_BINOMIAL = 1000
MAX_FACTORIAL = 999
_HUGE = 10**6  # and everything larger
_WORDS = re.compile(r"\\(?:[io]*int|sum|prod|coprod)(?![A-Za-z])|__|lambda")
_BINOMIAL = re.compile(r"\\[dt]?binom(?![A-Za-z])|\\choose(?![A-Za-z])")
_TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|[0-9]+|\S", re.DOTALL)
_OPENING, _CLOSING = ("{", "(", "[", r"\{"), ("}", ")", "]", r"\}")


def refused(text: str) -> bool:
    """Whether a tidied answer must not go to computer algebra: it is too long, nests too deep, or holds a large power,
    factorial or binomial, an integral, a sum, a product, or what looks like a program."""
    if len(text) > MAX_LENGTH or _WORDS.search(text):
        return True
    return _is_too_large(text, MAX_BINOMIAL if _BINOMIAL.search(text) else _HUGE)


class _Atom(NamedTuple):
    """The size of a character, numeral or group."""

    size: int = 1
    """At least its largest numeral or power of numerals."""
    powers: int = 0
    """How deep powers of powers nest within it."""
    factorial: bool = False


class _Group:
    """A group in brackets while it is read."""

    largest = last = _Atom()
    base: _Atom | None = None
    """The base of the exponent that follows."""

    def add(self, atom: _Atom) -> bool:
        """Add the next atom; whether it makes too large a power."""
        too_large = False
        if base := self.base:
            too_large = atom.size > MAX_EXPONENT
            depth = 1 + max(base.powers, atom.powers)
            atom = _Atom(_power(base.size, atom.size), depth, base.factorial or atom.factorial)
            self.base = None
        best, self.last = self.largest, atom
        self.largest = _Atom(max(best.size, atom.size), max(best.powers, atom.powers), best.factorial or atom.factorial)
        return too_large or atom.powers > MAX_POWERS


def _is_too_large(text: str, largest: int) -> bool:
    """Whether the text nests too deep or holds a number or power above `largest`."""
    groups = [_Group()]
    for token in _TOKEN.findall(text):
        group = groups[-1]
        too_large = False
        if token in _OPENING:
            groups.append(_Group())
            too_large = len(groups) > MAX_NESTING
        elif token in _CLOSING and len(groups) > 1:
            groups.pop()
            too_large = groups[-1].add(group.largest)
        elif token == "^":
            group.base = group.last
        elif token == "!":
            too_large = group.last.factorial or group.last.size > MAX_FACTORIAL
            group.last, group.largest = (each._replace(factorial=True) for each in (group.last, group.largest))
        else:
            too_large = group.add(_Atom(_size(token) if token[0].isdecimal() else 1))
        if too_large:
            return True
    return any(group.largest.size > largest for group in groups)


def _size(numeral: str) -> int:
    return _HUGE if len(numeral) > 6 else int(numeral)


def _power(base: int, exponent: int) -> int:
    return _HUGE if base > 1 and exponent > 20 else int(min(base**exponent, _HUGE))


DEADLINE_S = 3.0  # of the worker's own CPU time: on a busy machine, an honest comparison takes no more of it
CEILING_S = 120.0  # by the clock, for a worker that sleeps or is stopped
SLOW_S = 1.0  # by the clock; a slower comparison may end its worker, so another one starts
START_S = 300.0  # imports took more than a minute at a load of 20 per core
MAX_ITEMS = 1000  # per worker, because computer algebra caches what it has seen
MAX_KNOWN = 20_000
PROGRAM = Path(__file__).with_name("algebra_worker.py")
ENVIRONMENT = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "SYSTEMROOT")

Outcome = Literal["same", "different", "timeout", "memory", "crash"]


class Worker:
    """A worker process and the lines to and from it."""

    def __init__(self) -> None:
        env = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            env=env | {"PYTHONHASHSEED": "0"},
        )  # fmt: skip
        self.items = 0
        self.ready = False

    def compare(self, gold: str, answer: str, when_slow: Callable[[], None]) -> Outcome:
        """Whether two answers are the same. After any other outcome than `same` and `different` the worker is unusable.

        The worker ends itself after `DEADLINE_S` of its CPU time. `when_slow` is called after `SLOW_S`.
        Errors: GspoError when the worker cannot start at all.
        """
        if not self.ready:
            self.ready = self._read(START_S) == {"ready": True}
            if not self.ready:
                self.close()
                raise GspoError(
                    "the checker of mathematical answers cannot start",
                    f"`{sys.executable} {PROGRAM}` ended or stayed silent",
                    "run that command to see why; it needs the package math-verify",
                    ExitCode.ENGINE,
                )
        self.items += 1
        assert self.process.stdin is not None
        request = {"id": self.items, "gold": gold, "answer": answer, "cpu_s": DEADLINE_S}
        try:
            self.process.stdin.write(json.dumps(request).encode("ascii") + b"\n")
        except BrokenPipeError:
            return "crash"
        reply = self._read(SLOW_S)
        if reply is None:
            when_slow()
            reply = self._read(CEILING_S)
        if reply is None or (not reply and self._ended_by_timer()):
            return "timeout"
        if reply == {"id": self.items, "error": "memory"}:
            return "memory"
        if reply.keys() != {"id", "same"} or reply["id"] != self.items or not isinstance(reply["same"], bool):
            return "crash"
        return "same" if reply["same"] else "different"

    def _read(self, seconds: float) -> dict[str, Any] | None:
        """The next line; None after so many seconds; an empty reply if the process has ended or sent nonsense."""
        assert self.process.stdout is not None
        poll, data, end = select.poll(), b"", time.monotonic() + seconds
        poll.register(self.process.stdout)
        while not data.endswith(b"\n"):
            if not poll.poll(max(end - time.monotonic(), 0.0) * 1000):
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

    def _ended_by_timer(self) -> bool:
        """Whether the worker used up its CPU time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(1.0) == -signal.SIGPROF
        return False

    def close(self) -> None:
        """Kill the process and wait for its end."""
        self.process.kill()
        self.process.wait()
        self.close_pipes()

    def close_pipes(self) -> None:
        """Close this end of the pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Verifier:
    """A pool with as many workers as threads compare at once; it starts empty."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], Outcome] = {}

    def compare(self, gold: str, answer: str) -> Outcome:
        """Whether math-verify takes the answer for the gold one. A pair is computed once: the samples of a group often
        agree, and a bomb among them costs its deadline once.

        Errors: GspoError when no worker can start.
        """
        known = self._known.get((gold, answer))
        if known is not None:
            return known
        worker = self._take()
        try:
            outcome = worker.compare(gold, answer, self._spare)
        except BaseException:  # such as Ctrl-C: a late reply would be taken for the next one
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
        """Start a worker unless one is idle."""
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
        """End the idle workers."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    def forget(self) -> None:
        """In a forked child: drop the workers, which only the parent can wait for."""
        for worker in self._idle:
            worker.process.returncode = 0
            worker.close_pipes()
        self.__init__()  # type: ignore[misc]


VERIFIER = Verifier()
atexit.register(VERIFIER.close)
os.register_at_fork(after_in_child=VERIFIER.forget)
