"""Grade many programs at once: a pool of threads, each of which starts one sandboxed process after another.

Threads suffice because every program is a process anyway. They are long-lived because a sandbox ends with the thread
that started it. Neither the order of the results nor the results depend on the number of workers.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gspo_cli.rewards.code.code_tests import BadTests, CodeTests
from gspo_cli.rewards.code.official import grade_official
from gspo_cli.rewards.code.script import grade_checked, grade_script
from gspo_cli.rewards.verdict import EXCLUDED, RUNNER_ERROR, TIME_LIMIT, ProgramVerdict
from gspo_cli.sandbox.contract import Sandbox
from gspo_cli.sandbox.machine import physical_cores
from gspo_cli.types import visible

PROGRAM_GRADERS: dict[str, Callable[[Sandbox, str, CodeTests], ProgramVerdict]] = {
    "official": grade_official,
    "script": grade_script,
}
CHECKED = "checked"
"""The grader of problems that may bring a checker. Users cannot choose it."""
ALL_GRADERS = PROGRAM_GRADERS | {CHECKED: grade_checked}
BUSY_S = 0.5
"""A program that timed out after waiting less than this for a core would time out on an idle machine too."""


def extract_program(response: str) -> tuple[str, str]:
    """(program, how it was found), from what follows the last `</think>`: the text between the last two fences.

    Fewer than two fences give the empty program, as does a thinking part that is never closed. An odd number of fences
    (an answer that was cut off) picks the text between two blocks, as officially; that is named `odd_fences`.
    """
    shown = visible(response)
    if shown is None:
        return "", "unclosed"
    lines = shown.split("\n")
    fences = [number for number, line in enumerate(lines) if "```" in line]
    if len(fences) < 2:
        return "", "no_fences"
    program = "\n".join(lines[fences[-2] + 1 : fences[-1]])
    return program, "odd_fences" if len(fences) % 2 else "fences"


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
        """Unpack them once and drop them. Errors: BadTests when nothing can be graded against them."""
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
    """The result of `grade_all`."""

    verdicts: list[dict[str, ProgramVerdict]]
    """By grader, in the order of the work."""
    unconfirmed: int
    """Timeouts on a busy machine that a second run, with one core per program, did not confirm. Its verdict counts."""


def grade_all(sandbox: Sandbox, graders: Sequence[str], work: Sequence[Work], workers: int) -> Graded:
    """Every program under every grader. An interrupt kills all programs that run."""
    for item in work:
        item.tests.uses += 1
    verdicts = _run(sandbox, [(graders, item) for item in work], workers)
    again = [(i, grader) for i, row in enumerate(verdicts) for grader, v in row.items() if needs_second_run(v)]
    repeats = _run(sandbox, [((grader,), work[i]) for i, grader in again], min(workers, physical_cores()))
    unconfirmed = 0
    for (index, grader), repeat in zip(again, repeats, strict=True):
        unconfirmed += repeat[grader].verdict != verdicts[index][grader].verdict
        verdicts[index] |= repeat
    return Graded(verdicts, unconfirmed)


def needs_second_run(verdict: ProgramVerdict) -> bool:
    """Whether it timed out without a core to itself: the machine was busy, or stood still."""
    return verdict.verdict in (TIME_LIMIT, RUNNER_ERROR) and verdict.cpu_wait_s >= BUSY_S


def _run(sandbox: Sandbox, jobs: Sequence[tuple[Sequence[str], Work]], workers: int) -> list[dict[str, ProgramVerdict]]:
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(_grade, sandbox, graders, item) for graders, item in jobs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            sandbox.close()
            raise


def _grade(sandbox: Sandbox, graders: Sequence[str], item: Work) -> dict[str, ProgramVerdict]:
    try:
        tests = item.tests.get()
        return {grader: ALL_GRADERS[grader](sandbox, item.program, tests) for grader in graders}
    except BadTests as error:
        return {grader: ProgramVerdict(EXCLUDED, str(error)) for grader in graders}
    finally:
        item.tests.done()
