"""The `script` grader: each test is a fresh process with real pipes, and for functions a fresh call."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gspo_cli.rewards.code.code_tests import CodeTests
from gspo_cli.rewards.code.official import LIMIT_S, OUTPUT_CAP, Rules, converse, excerpt, graded, needed_bytes
from gspo_cli.rewards.code.outputs import SignallingNaN, same_output
from gspo_cli.rewards.verdict import ACCEPTED, GRADER_ERROR, RUNTIME_ERROR, TIME_LIMIT, WRONG_ANSWER, ProgramVerdict
from gspo_cli.sandbox.contract import START_S, Job, Sandbox
from gspo_cli.sandbox.process import Finished

START_ALLOWANCE_S = 2.0
FLAGS = ("-X", "utf8", "-X", "int_max_str_digits=50000")
READY = b"ready\n"


def grade_script(sandbox: Sandbox, program: str, tests: CodeTests, limit_s: int = LIMIT_S) -> ProgramVerdict:
    """The verdict on one program."""
    run_test = _run_stdin if tests.fn_name is None else _call_function
    return graded(tests, lambda: first_failure(tests, lambda index: run_test(sandbox, program, tests, index, limit_s)))


def first_failure(tests: CodeTests, run_test: Callable[[int], ProgramVerdict]) -> ProgramVerdict:
    """The verdict of the first test that fails, or `accepted`; `run_test` takes a test's index."""
    for index in range(len(tests.inputs)):
        verdict = run_test(index)
        if verdict.verdict != ACCEPTED:
            break
    return replace(verdict, tests_run=index + 1)


def _run_stdin(
    sandbox: Sandbox,
    program: str,
    tests: CodeTests,
    index: int,
    limit_s: float,
    same: Callable[[str, str], bool] = same_output,
) -> ProgramVerdict:
    """One test of a stdin program. Errors: OSError when the sandbox does not start."""
    done = run_program(sandbox, program, tests.inputs[index], limit_s, needed_bytes(tests.outputs[index]))
    if failed := failure(done):
        return failed
    try:
        right = same(done.stdout.decode("utf-8", "replace"), tests.outputs[index])
    except SignallingNaN:
        return ProgramVerdict(RUNTIME_ERROR, "signalling NaN")
    return ProgramVerdict(ACCEPTED if right else WRONG_ANSWER)


def run_program(sandbox: Sandbox, program: str, text: str, limit_s: float, cap: int = OUTPUT_CAP) -> Finished:
    """Run a stdin program once, for at most `cap` bytes of output. Errors: OSError when the sandbox does not start."""
    source = program.encode("utf-8", "surrogatepass")
    job = Job("program.py", {"program.py": source}, FLAGS, announce=True, cpu_s=int(limit_s) + 5)
    return _run_job(sandbox, job, text.encode("utf-8", "surrogatepass"), limit_s + START_ALLOWANCE_S, cap)


def _run_job(sandbox: Sandbox, job: Job, stdin: bytes, seconds: float, cap: int) -> Finished:
    """Run a job that announces itself; a second attempt if the sandbox did not start.

    Errors: OSError with what the sandbox printed.
    """
    for _ in range(2):
        done = sandbox.start(job).run(stdin, time.monotonic() + seconds, cap)
        if done.stdout.startswith(READY):
            return replace(done, stdout=done.stdout[len(READY) :])
    raise OSError(done.stderr.decode("utf-8", "replace")[-300:] or "no answer from inside")


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
    alone = CodeTests((tests.inputs[index],), (tests.outputs[index],), tests.fn_name)
    seconds = limit_s + START_ALLOWANCE_S
    rules = Rules("function", limit_s + 5, limit_s, seconds, seconds, TIME_LIMIT, RUNTIME_ERROR, plain=True)
    return converse(sandbox, program, alone, rules)


CHECKER_S = 10
PASSING = (1.0, 100.0)
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
    return graded(tests, lambda: first_failure(tests, lambda index: _run_test(sandbox, program, tests, index)))


def _run_test(sandbox: Sandbox, program: str, tests: CheckedTests, index: int) -> ProgramVerdict:
    """One test. Errors: OSError when the sandbox does not start."""
    if tests.checker is None:
        return _run_stdin(sandbox, program, tests, index, tests.limit_s, same_words)
    text, expected = tests.inputs[index], tests.outputs[index]
    done = run_program(sandbox, program, text, tests.limit_s)
    if failed := failure(done):
        return failed
    passes = _checker_passes(sandbox, tests.checker, text, expected, done.stdout)
    if passes is not None:
        return ProgramVerdict(ACCEPTED if passes else WRONG_ANSWER)
    # An output may break a checker. One that breaks on the expected output as well is at fault itself.
    if _checker_passes(sandbox, tests.checker, text, expected, expected.encode("utf-8", "surrogatepass")):
        return ProgramVerdict(WRONG_ANSWER, "the checker fails on this output")
    return ProgramVerdict(GRADER_ERROR, "the checker fails on the expected output")


def _checker_passes(sandbox: Sandbox, checker: str, text: str, expected: str, output: bytes) -> bool | None:
    """Whether a checker passes an output; None if it fails or prints anything but one number.

    Errors: OSError when the sandbox does not start.
    """
    texts = {"checker.py": checker, "input": text, "expected": expected}
    files = {name: content.encode("utf-8", "surrogatepass") for name, content in texts.items()}
    job = Job("run.py", files | {"output": output, "run.py": RUN_CHECKER}, FLAGS, announce=True, cpu_s=CHECKER_S)
    done = _run_job(sandbox, job, b"", START_S + CHECKER_S, cap=1 << 16)
    number = re.fullmatch(rb"\s*(-?\d+(?:\.\d+)?)\s*", done.stdout)
    return float(number[1]) in PASSING if number and done.code == 0 else None


def same_words(output: str, expected: str) -> bool:
    """Equal line by line and word by word; empty lines, line ends and the case of yes and no do not matter."""
    return _words(output) == _words(expected)


def _words(text: str) -> list[list[str]]:
    lines = (line.split() for line in text.replace("\r", "").split("\n"))
    return [[word.lower() if word.lower() in ("yes", "no") else word for word in line] for line in lines if line]
