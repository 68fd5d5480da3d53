"""Grades stdin programs whose right output need not be one text: an ordinary process a test, then a checker.

A checker is a program too, usually written by a model, so it runs in a sandbox of its own after the solution has ended,
and sees three files: the input, the expected output and the solution's. It says 1 or 100 where the output is right.
Without a checker, lines are compared word by word; `yes` and `no` without regard to case.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from gspo_cli.rewards.code.code_tests import BadTests, CodeTests
from gspo_cli.rewards.code.script import FLAGS, READY, failure, run_program
from gspo_cli.rewards.code.verdict import ACCEPTED, EXCLUDED, GRADER, WRONG, Verdict
from gspo_cli.sandbox.contract import START_S, Job, Sandbox

CHECKER_S = 10
RIGHT = ("1", "100")
RUN_CHECKER = b"""
import os, runpy, sys
here = os.path.dirname(os.path.abspath(__file__))
sys.argv = [os.path.join(here, name) for name in ("checker.py", "input", "expected", "output")]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class CheckedTests(CodeTests):
    """Tests with what else decides: a checker, and the problem's own time limit."""

    checker: str | None = field(default=None, repr=False)
    limit_s: float = 6.0


def grade_checked(sandbox: Sandbox, program: str, tests: CodeTests) -> Verdict:
    """The verdict on one program."""
    assert isinstance(tests, CheckedTests)
    try:
        tests.check()
    except BadTests as error:
        return Verdict(EXCLUDED, str(error))
    start, total, run = time.monotonic(), len(tests.inputs), 0
    verdict = Verdict(ACCEPTED)
    try:
        for run in range(1, total + 1):
            verdict = _one(sandbox, program, tests, run - 1)
            if verdict.verdict != ACCEPTED:
                break
    except OSError as error:
        verdict = Verdict(GRADER, f"the sandbox does not start: {error}")
    return replace(verdict, tests_run=run, tests_total=total, seconds=time.monotonic() - start)


def _one(sandbox: Sandbox, program: str, tests: CheckedTests, index: int) -> Verdict:
    """One test. Errors: OSError when the sandbox does not start."""
    given, expected = tests.inputs[index], tests.outputs[index]
    done = run_program(sandbox, program, given, tests.limit_s)
    failed = failure(done)
    if failed is not None:
        return failed
    if tests.checker is None:
        return Verdict(ACCEPTED if same_words(done.stdout.decode("utf-8", "replace"), expected) else WRONG)
    right = is_right(sandbox, tests.checker, given, expected, done.stdout)
    if right is not None:
        return Verdict(ACCEPTED if right else WRONG)
    # An output may break a checker. One that breaks on the expected output as well is at fault itself.
    if is_right(sandbox, tests.checker, given, expected, expected.encode("utf-8", "surrogatepass")):
        return Verdict(WRONG, "the checker fails on this output")
    return Verdict(GRADER, "the checker fails on the expected output")


def is_right(sandbox: Sandbox, checker: str, given: str, expected: str, output: bytes) -> bool | None:
    """What a checker says of an output; None where it says nothing.

    Errors: OSError when the sandbox does not start.
    """
    texts = {"checker.py": checker, "input": given, "expected": expected}
    files = {name: text.encode("utf-8", "surrogatepass") for name, text in texts.items()}
    job = Job("run.py", files | {"output": output, "run.py": RUN_CHECKER}, FLAGS, announce=True, cpu_s=CHECKER_S)
    done = sandbox.start(job).run(b"", time.monotonic() + START_S + CHECKER_S, cap=1 << 16)
    if not done.stdout.startswith(READY):
        raise OSError(done.stderr.decode("utf-8", "replace")[-300:] or "no answer from inside")
    said = done.stdout[len(READY) :].decode("utf-8", "replace").strip()
    return said in RIGHT if done.code == 0 and said else None


def same_words(output: str, expected: str) -> bool:
    """Equal line by line and word by word; empty lines and the kind of line end do not count."""
    return _lines(output) == _lines(expected)


def _lines(text: str) -> list[list[str]]:
    lines = (line.split() for line in text.replace("\r", "").split("\n"))
    return [[word.lower() if word.lower() in ("yes", "no") else word for word in line] for line in lines if line]
