"""The `script` grader: each test is a fresh process with real pipes, and for functions a fresh call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gspo_cli.rewards.code.code_tests import BadTests, CodeTests
from gspo_cli.rewards.code.harness_process import (
    FORGED,
    OUTPUT_CAP,
    TooLong,
    excerpt,
    may_be_right,
    needed_bytes,
    receive,
    send,
    start_harness,
)
from gspo_cli.rewards.code.outputs import NoTruth, SignallingNaN, read_value, same_output, same_value
from gspo_cli.rewards.verdict import (
    ACCEPTED,
    EXCLUDED,
    GRADER_ERROR,
    RUNTIME_ERROR,
    TIME_LIMIT,
    WRONG_ANSWER,
    ProgramVerdict,
)
from gspo_cli.sandbox.contract import START_S, Job, Sandbox
from gspo_cli.sandbox.process import DeadlinePassed, Finished, PipeClosed

LIMIT_S = 6
START_ALLOWANCE_S = 2.0
FLAGS = ("-X", "utf8", "-X", "int_max_str_digits=50000")
READY = b"ready\n"


def grade_script(sandbox: Sandbox, program: str, tests: CodeTests, limit_s: int = LIMIT_S) -> ProgramVerdict:
    """The verdict on one program."""
    run_test = _run_stdin if tests.fn_name is None else _call_function
    return grade_each_test(tests, lambda index: run_test(sandbox, program, tests, index, limit_s))


def grade_each_test(tests: CodeTests, run_test: Callable[[int], ProgramVerdict]) -> ProgramVerdict:
    """The verdict of the first test that fails, or `accepted`; `run_test` takes a test's index.

    A sandbox that does not start (OSError) is a `grader_error`.
    """
    try:
        tests.check()
    except BadTests as error:
        return ProgramVerdict(EXCLUDED, str(error))
    start, total, run = time.monotonic(), len(tests.inputs), 0
    verdict = ProgramVerdict(ACCEPTED)
    try:
        for run in range(1, total + 1):
            verdict = run_test(run - 1)
            if verdict.verdict != ACCEPTED:
                break
    except OSError as error:
        verdict = ProgramVerdict(GRADER_ERROR, f"the sandbox does not start: {error}")
    return replace(verdict, tests_run=run, tests_total=total, seconds=time.monotonic() - start)


def _run_stdin(sandbox: Sandbox, program: str, tests: CodeTests, index: int, limit_s: int) -> ProgramVerdict:
    """One test of a stdin program. Errors: OSError when the sandbox does not start."""
    done = run_program(sandbox, program, tests.inputs[index], limit_s, needed_bytes(tests.outputs[index]))
    if failed := failure(done):
        return failed
    try:
        right = same_output(done.stdout.decode("utf-8", "replace"), tests.outputs[index])
    except SignallingNaN:
        return ProgramVerdict(RUNTIME_ERROR, "signalling NaN")
    return ProgramVerdict(ACCEPTED if right else WRONG_ANSWER)


def run_program(sandbox: Sandbox, program: str, text: str, limit_s: float, cap: int = OUTPUT_CAP) -> Finished:
    """Run a stdin program once, for at most `cap` bytes of output; a second attempt if the sandbox did not start.

    Errors: OSError with what the sandbox printed.
    """
    source = program.encode("utf-8", "surrogatepass")
    job = Job("program.py", {"program.py": source}, FLAGS, announce=True, cpu_s=int(limit_s) + 5)
    for _ in range(2):
        deadline = time.monotonic() + limit_s + START_ALLOWANCE_S
        done = sandbox.start(job).run(text.encode("utf-8", "surrogatepass"), deadline, cap)
        if done.stdout.startswith(READY):
            return replace(done, stdout=done.stdout[len(READY) :])
    raise not_started(done)


def not_started(done: Finished) -> OSError:
    """The error for a run without the line `ready`."""
    return OSError(done.stderr.decode("utf-8", "replace")[-300:] or "no answer from inside")


def failure(done: Finished) -> ProgramVerdict | None:
    """The verdict on a run that did not end on its own with exit code 0."""
    if done.stopped:
        return ProgramVerdict(RUNTIME_ERROR, done.stopped)
    if done.output_exceeded:
        return ProgramVerdict(WRONG_ANSWER, "output_limit")
    if done.timed_out:
        return ProgramVerdict(TIME_LIMIT, cpu_wait_s=done.cpu_wait_s)
    if done.code:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return ProgramVerdict(RUNTIME_ERROR, excerpt(lines[-1] if lines else f"exit code {done.code}"))
    return None


def _call_function(sandbox: Sandbox, program: str, tests: CodeTests, index: int, limit_s: int) -> ProgramVerdict:
    """One test of a function. Errors: OSError when the sandbox does not start."""
    process = start_harness(sandbox, "function", cpu_s=limit_s + 5)
    try:
        deadline = time.monotonic() + limit_s + START_ALLOWANCE_S
        header = {"fn_name": tests.fn_name, "cap": OUTPUT_CAP, "input": tests.inputs[index]}
        send(process, header, program.encode("utf-8", "surrogatepass"), deadline)
        reply, payload = receive(process, deadline, needed_bytes(tests.outputs[index]))
        if reply.get("status") == "output_limit":
            return ProgramVerdict(WRONG_ANSWER, "output_limit")
        if reply.get("status") != "ok":
            return ProgramVerdict(RUNTIME_ERROR, excerpt(reply.get("error")))
        if reply.get("unprintable"):
            return ProgramVerdict(RUNTIME_ERROR, "the result has no text")
        if not may_be_right(payload, tests.outputs[index]):
            return ProgramVerdict(WRONG_ANSWER)
        sent = read_value(payload)
        right = _is_plain(sent) and same_value(sent, tests.expected[index])
    except DeadlinePassed as passed:
        return ProgramVerdict(TIME_LIMIT, cpu_wait_s=max(process.cpu_wait_s(), passed.late_by_s))
    except TooLong as long:
        if long.header.get("unprintable"):
            return ProgramVerdict(RUNTIME_ERROR, "the result has no text")
        return ProgramVerdict(WRONG_ANSWER, "output_limit")
    except PipeClosed:
        return ProgramVerdict(RUNTIME_ERROR, process.stopped or "the process ended")
    except NoTruth:
        return ProgramVerdict(RUNTIME_ERROR, "the comparison has no truth value")
    except FORGED:
        return ProgramVerdict(RUNTIME_ERROR, "the channel was written to")
    finally:
        process.kill()
    return ProgramVerdict(ACCEPTED if right else WRONG_ANSWER)


def _is_plain(sent: Any) -> bool:
    """Whether a sent value is made of JSON's types and of numbers of any type, numpy's included, which equal those.

    Whether a tuple counts as a list is for the comparison to decide.
    """
    match sent:
        case [("l" | "t"), *items]:
            return all(map(_is_plain, items))
        case ["d", *pairs]:
            return all(_is_plain(value) for _, value in pairs)
        case ["a", shape, _]:
            return bool(shape == [])
    return True  # a number, or what equals nothing


CHECKER_S = 10
PASSING = ("1", "100")
RUN_CHECKER = b"""
import os, runpy, sys
here = os.path.dirname(os.path.abspath(__file__))
sys.argv = [os.path.join(here, name) for name in ("checker.py", "input", "expected", "output")]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class CheckedTests(CodeTests):
    """Tests with the problem's checker and time limit."""

    checker: str | None = field(default=None, repr=False)
    """Source of the checker; without one, words are compared."""
    limit_s: float = 6.0


def grade_checked(sandbox: Sandbox, program: str, tests: CodeTests) -> ProgramVerdict:
    """The verdict on one program."""
    assert isinstance(tests, CheckedTests)
    return grade_each_test(tests, lambda index: _run_test(sandbox, program, tests, index))


def _run_test(sandbox: Sandbox, program: str, tests: CheckedTests, index: int) -> ProgramVerdict:
    """One test. Errors: OSError when the sandbox does not start."""
    text, expected = tests.inputs[index], tests.outputs[index]
    cap = needed_bytes(expected) if tests.checker is None else OUTPUT_CAP
    done = run_program(sandbox, program, text, tests.limit_s, cap)
    if failed := failure(done):
        return failed
    if tests.checker is None:
        right = same_words(done.stdout.decode("utf-8", "replace"), expected)
        return ProgramVerdict(ACCEPTED if right else WRONG_ANSWER)
    passes = _checker_passes(sandbox, tests.checker, text, expected, done.stdout)
    if passes is not None:
        return ProgramVerdict(ACCEPTED if passes else WRONG_ANSWER)
    # An output may break a checker. One that breaks on the expected output as well is at fault itself.
    if _checker_passes(sandbox, tests.checker, text, expected, expected.encode("utf-8", "surrogatepass")):
        return ProgramVerdict(WRONG_ANSWER, "the checker fails on this output")
    return ProgramVerdict(GRADER_ERROR, "the checker fails on the expected output")


def _checker_passes(sandbox: Sandbox, checker: str, text: str, expected: str, output: bytes) -> bool | None:
    """Whether a checker passes an output; None if it fails or prints nothing.

    Errors: OSError when the sandbox does not start.
    """
    texts = {"checker.py": checker, "input": text, "expected": expected}
    files = {name: content.encode("utf-8", "surrogatepass") for name, content in texts.items()}
    job = Job("run.py", files | {"output": output, "run.py": RUN_CHECKER}, FLAGS, announce=True, cpu_s=CHECKER_S)
    done = sandbox.start(job).run(b"", time.monotonic() + START_S + CHECKER_S, cap=1 << 16)
    if not done.stdout.startswith(READY):
        raise not_started(done)
    printed = done.stdout[len(READY) :].decode("utf-8", "replace").strip()
    return printed in PASSING if done.code == 0 and printed else None


def same_words(output: str, expected: str) -> bool:
    """Equal line by line and word by word; empty lines, line ends and the case of yes and no do not matter."""
    return _words(output) == _words(expected)


def _words(text: str) -> list[list[str]]:
    lines = (line.split() for line in text.replace("\r", "").split("\n"))
    return [[word.lower() if word.lower() in ("yes", "no") else word for word in line] for line in lines if line]
