"""The `official` grader: the verdicts of LiveCodeBench's evaluator, with the expected outputs kept out of reach.

The program runs in a sandbox under `harness/official.py`, which imitates that evaluator. One input goes in, one output
comes back, and only then are they compared, here. So a program can forge its own output and nothing else.

Differs from the official evaluator: an object of a class of the program's own equals nothing; a name that only the
prelude binds is missing; memory is limited to 2 GiB and processes to 32; 14 seconds of silence in one test (which takes
defeating the alarm) end the program; output beyond 32 MiB is a wrong answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from gspo_cli.rewards.code.code_tests import BadTests, CodeTests
from gspo_cli.rewards.code.harness_process import (
    FORGED,
    OUTPUT_CAP,
    excerpt,
    may_be_right,
    needed_bytes,
    receive,
    send,
    start_harness,
)
from gspo_cli.rewards.code.outputs import (
    EmptyTruth,
    NoTruth,
    SignallingNaN,
    is_plain,
    read_value,
    same_output,
    same_value,
)
from gspo_cli.rewards.verdict import (
    ACCEPTED,
    EXCLUDED,
    GRADER_ERROR,
    RUNNER_ERROR,
    RUNTIME_ERROR,
    TIME_LIMIT,
    WRONG_ANSWER,
    ProgramVerdict,
)
from gspo_cli.sandbox.contract import Sandbox
from gspo_cli.sandbox.process import DeadlinePassed, PipeClosed, Process

LIMIT_S = 6
"""Of each test, by an alarm in the program's process."""
SILENCE_S = 14.0


def grade_official(sandbox: Sandbox, program: str, tests: CodeTests, limit_s: int = LIMIT_S) -> ProgramVerdict:
    """The verdict on one program."""
    total = len(tests.inputs)
    rules = Rules(
        "official",
        cpu_s=(limit_s + 1) * total + 10,
        limit_s=limit_s,
        silence_s=limit_s + SILENCE_S - LIMIT_S,
        total_s=(limit_s + 1) * total + 5,
    )
    return graded(tests, lambda: converse(sandbox, program, tests, rules))


def graded(tests: CodeTests, run: Callable[[], ProgramVerdict]) -> ProgramVerdict:
    """The verdict that `run` returns on usable tests, timed. A sandbox that does not start (OSError) is a
    `grader_error`."""
    try:
        tests.check()
    except BadTests as error:
        return ProgramVerdict(EXCLUDED, str(error))
    start = time.monotonic()
    try:
        verdict = run()
    except OSError as error:
        verdict = ProgramVerdict(GRADER_ERROR, f"the sandbox does not start: {error}")
    return replace(verdict, tests_total=len(tests.inputs), seconds=time.monotonic() - start)


@dataclass(frozen=True)
class Rules:
    """How a conversation with a harness is limited and judged."""

    harness: Literal["official", "function"]
    cpu_s: int
    limit_s: int
    """Of each test, for a harness that has a clock."""
    silence_s: float
    """The longest wait for a reply."""
    total_s: float
    silent: str = RUNNER_ERROR
    broken: str = RUNNER_ERROR
    """The verdicts on a program that stays silent, and on one that ends or writes into the channel."""
    plain: bool = False
    """Whether arrays equal nothing."""


def converse(sandbox: Sandbox, program: str, tests: CodeTests, rules: Rules) -> ProgramVerdict:
    """Run tests in one process until one fails. Errors: OSError when the sandbox does not start."""
    process = start_harness(sandbox, rules.harness, rules.cpu_s)
    try:
        return _run_tests(process, program, tests, rules)
    finally:
        process.kill()


def _run_tests(process: Process, program: str, tests: CodeTests, rules: Rules) -> ProgramVerdict:
    """After the hello, a broken conversation is the program's fault."""
    end, run = time.monotonic() + rules.total_s, 0
    try:
        deadline = min(end, time.monotonic() + rules.silence_s)
        header = {"fn_name": tests.fn_name, "limit_s": rules.limit_s, "cap": OUTPUT_CAP}
        send(process, header, program.encode("utf-8", "surrogatepass"), deadline)
        loaded, _ = receive(process, deadline, cap=0)
        if loaded.get("status") != "loaded":
            return ProgramVerdict(RUNTIME_ERROR, excerpt(loaded.get("error")))
        for run, text in enumerate(tests.inputs, start=1):
            deadline = min(end, time.monotonic() + rules.silence_s)
            send(process, {}, text.encode("utf-8", "surrogatepass"), deadline)
            reply, payload = receive(process, deadline, needed_bytes(tests.outputs[run - 1]))
            verdict = _verdict_on_reply(reply, payload, tests, run - 1, rules)
            if verdict.verdict != ACCEPTED:
                cpu_wait_s = process.cpu_wait_s() if verdict.verdict == TIME_LIMIT else 0.0
                return replace(verdict, tests_run=run, cpu_wait_s=cpu_wait_s)
    except DeadlinePassed as passed:
        cpu_wait_s = max(process.cpu_wait_s(), passed.late_by_s)
        return ProgramVerdict(rules.silent, "silent for too long", run, cpu_wait_s=cpu_wait_s)
    except PipeClosed:
        return ProgramVerdict(rules.broken, process.stopped or "the process ended", run)
    except FORGED:
        return ProgramVerdict(rules.broken, "the channel was written to", run)
    return ProgramVerdict(ACCEPTED, tests_run=run)


def _verdict_on_reply(
    header: dict[str, Any], payload: bytes | None, tests: CodeTests, index: int, rules: Rules
) -> ProgramVerdict:
    """The verdict on one test from the harness's reply.

    Errors: those of `FORGED` for a reply that the harness never sends.
    """
    status = header["status"]
    if status in (TIME_LIMIT, RUNTIME_ERROR):
        return ProgramVerdict(status, excerpt(header.get("error")))
    if status not in ("ok", "output_limit"):
        raise ValueError(status)
    if status == "output_limit" or payload is None:
        right, reason = False, "output_limit"
    else:
        try:
            right, reason = _is_right(payload, tests, index, rules.plain), ""
        except SignallingNaN:
            return ProgramVerdict(RUNTIME_ERROR, "signalling NaN")
        except NoTruth as error:
            whole_result = isinstance(error, EmptyTruth) and payload.startswith(b'["a"')
            return ProgramVerdict(rules.broken if whole_result else RUNTIME_ERROR, "the comparison has no truth value")
    if right:
        return ProgramVerdict(ACCEPTED)
    if header.get("unprintable"):
        return ProgramVerdict(RUNTIME_ERROR, "the result has no text")
    return ProgramVerdict(WRONG_ANSWER, reason)


def _is_right(payload: bytes, tests: CodeTests, index: int, plain: bool) -> bool:
    """Whether an output or result is as expected. Errors: SignallingNaN, NoTruth, and those of `FORGED`."""
    if tests.fn_name is None:
        return same_output(payload.decode("utf-8", "surrogatepass"), tests.outputs[index])
    if not may_be_right(payload, tests.outputs[index]):
        return False
    sent = read_value(payload)
    return (is_plain(sent) or not plain) and same_value(sent, tests.expected[index])
