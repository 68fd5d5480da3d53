"""Many programs at once: a pool of threads, each of which starts one sandboxed process after another.

Threads, because every program is a process of its own anyway, and long-lived ones, because a sandbox ends with the
thread that started it. Neither the order of the results nor the results depend on the number of workers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gspo_cli.rewards.code.checked import grade_checked
from gspo_cli.rewards.code.code_tests import BadTests, CodeTests
from gspo_cli.rewards.code.official import grade_official
from gspo_cli.rewards.code.script import grade_script
from gspo_cli.rewards.code.verdict import EXCLUDED, LATE, RUNNER, Verdict
from gspo_cli.sandbox.contract import Sandbox
from gspo_cli.sandbox.machine import physical_cores

GRADERS: dict[str, Callable[[Sandbox, str, CodeTests], Verdict]] = {
    "official": grade_official,
    "script": grade_script,
}
CHECKED = "checked"
ALL = GRADERS | {CHECKED: grade_checked}
"""And one for problems that bring their own way to judge an output; it is nobody's choice."""
BUSY_S = 0.5
"""A program that was late and had waited less than this for a core would be late on an idle machine too."""


class SharedTests:
    """Tests of a problem, unpacked for the first program that needs them and dropped after the last.

    A benchmark's tests are gigabytes unpacked and a few hundred megabytes packed.
    """

    def __init__(self, unpack: Callable[[], CodeTests]) -> None:
        self._unpack = unpack
        self._lock = threading.Lock()
        self._tests: CodeTests | None = None
        self.uses = 0

    def get(self) -> CodeTests:
        """The tests. Errors: BadTests."""
        with self._lock:
            if self._tests is None:
                self._tests = self._unpack()
            return self._tests

    def check(self) -> None:
        """Unpacks them once and drops them. Errors: BadTests when nothing can be graded against them."""
        self._unpack().check()

    def done(self) -> None:
        """One of the `uses` is over."""
        with self._lock:
            self.uses -= 1
            if self.uses <= 0:
                self._tests = None


@dataclass(frozen=True)
class Work:
    """One program to grade."""

    program: str
    tests: SharedTests


@dataclass(frozen=True)
class Graded:
    """What came out of a pool."""

    verdicts: list[dict[str, Verdict]]
    """By grader, in the order of the work."""
    unconfirmed: int
    """Time limits on a busy machine that a second run, with a core each, did not confirm; its verdict counts."""


def grade_all(sandbox: Sandbox, graders: Sequence[str], work: Sequence[Work], workers: int) -> Graded:
    """Every program under every grader. An interrupt ends all programs that run."""
    for item in work:
        item.tests.uses += 1
    verdicts = _run(sandbox, [(graders, item) for item in work], workers)
    again = [(i, g) for i, of in enumerate(verdicts) for g, v in of.items() if needs_second_run(v)]
    seconds = _run(sandbox, [((grader,), work[i]) for i, grader in again], min(workers, physical_cores()))
    changed = 0
    for (index, grader), second in zip(again, seconds, strict=True):
        changed += second[grader].verdict != verdicts[index][grader].verdict
        verdicts[index] |= second
    return Graded(verdicts, changed)


def _run(sandbox: Sandbox, jobs: Sequence[tuple[Sequence[str], Work]], workers: int) -> list[dict[str, Verdict]]:
    """The verdicts of each job, in order."""
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(_grade, sandbox, graders, item) for graders, item in jobs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            sandbox.close()
            raise


def needs_second_run(verdict: Verdict) -> bool:
    """Whether it was late without having had a core to itself: the machine was busy, or stood still."""
    return verdict.verdict in (LATE, RUNNER) and verdict.waited_s >= BUSY_S


def _grade(sandbox: Sandbox, graders: Sequence[str], item: Work) -> dict[str, Verdict]:
    try:
        tests = item.tests.get()
        return {grader: ALL[grader](sandbox, item.program, tests) for grader in graders}
    except BadTests as error:
        return {grader: Verdict(EXCLUDED, str(error)) for grader in graders}
    finally:
        item.tests.done()
