"""The `official` grader: the verdicts of LiveCodeBench's evaluator, with the expected outputs kept out of reach.

The program runs in a sandbox under `harness/official.py`, which imitates that evaluator. One input goes in, one output
comes back, and only then are they compared, here. So a program can forge its own output and nothing else.

Differs from the official evaluator: an object of a class of the program's own equals nothing; a name that only the
prelude binds is missing; memory is limited to 2 GiB and processes to 32; 14 seconds of silence in one test (which takes
defeating the alarm) end the program; output beyond 32 MiB is a wrong answer.
"""

from __future__ import annotations

import time
from dataclasses import replace
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
from gspo_cli.rewards.code.outputs import EmptyTruth, NoTruth, SignallingNaN, read_value, same_output, same_value
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
    try:
        tests.check()
    except BadTests as error:
        return ProgramVerdict(EXCLUDED, str(error))
    start, total = time.monotonic(), len(tests.inputs)
    try:
        process = start_harness(sandbox, "official", cpu_s=(limit_s + 1) * total + 10)
    except OSError as error:
        return ProgramVerdict(GRADER_ERROR, f"the sandbox does not start: {error}", tests_total=total)
    try:
        verdict = _run_tests(process, program, tests, limit_s)
    finally:
        process.kill()
    return replace(verdict, tests_total=total, seconds=time.monotonic() - start)


def _run_tests(process: Process, program: str, tests: CodeTests, limit_s: int) -> ProgramVerdict:
    """Run tests until one fails. After the hello, a broken conversation is the program's fault."""
    silence = limit_s + SILENCE_S - LIMIT_S
    end = time.monotonic() + (limit_s + 1) * len(tests.inputs) + 5
    run = 0
    try:
        header = {"fn_name": tests.fn_name, "limit_s": limit_s, "cap": OUTPUT_CAP}
        send(process, header, program.encode("utf-8", "surrogatepass"), time.monotonic() + silence)
        loaded, _ = receive(process, min(end, time.monotonic() + silence), cap=0)
        if loaded.get("status") != "loaded":
            return ProgramVerdict(RUNTIME_ERROR, excerpt(loaded.get("error")))
        for run, text in enumerate(tests.inputs, start=1):
            deadline = min(end, time.monotonic() + silence)
            send(process, {}, text.encode("utf-8", "surrogatepass"), deadline)
            try:
                header, payload = receive(process, deadline, needed_bytes(tests.outputs[run - 1]))
            except TooLong as long:
                return replace(_wrong(long.header, "output_limit"), tests_run=run)
            verdict = _verdict_on_reply(header, payload, tests, run - 1)
            if verdict.verdict != ACCEPTED:
                cpu_wait_s = process.cpu_wait_s() if verdict.verdict == TIME_LIMIT else 0.0
                return replace(verdict, tests_run=run, cpu_wait_s=cpu_wait_s)
    except DeadlinePassed as passed:
        return ProgramVerdict(RUNNER_ERROR, "silent for too long", run, cpu_wait_s=passed.late_by_s)
    except PipeClosed:
        return ProgramVerdict(RUNNER_ERROR, process.stopped or "the process ended", run)
    except FORGED:
        return ProgramVerdict(RUNNER_ERROR, "the channel was written to", run)
    return ProgramVerdict(ACCEPTED, tests_run=run)


def _verdict_on_reply(header: dict[str, Any], payload: bytes, tests: CodeTests, index: int) -> ProgramVerdict:
    """The verdict on one test from the harness's reply.

    Errors: those of `FORGED` for a reply that the harness never sends.
    """
    status = header["status"]
    if status in (TIME_LIMIT, RUNTIME_ERROR):
        return ProgramVerdict(status, excerpt(header.get("error")))
    if status == "output_limit":
        return ProgramVerdict(WRONG_ANSWER, "output_limit")
    if status != "ok":
        raise ValueError(status)
    try:
        if tests.fn_name is None:
            right = same_output(payload.decode("utf-8", "surrogatepass"), tests.outputs[index])
        elif not may_be_right(payload, tests.outputs[index]):
            right = False
        else:
            right = same_value(read_value(payload), tests.expected[index])
    except SignallingNaN:
        return ProgramVerdict(RUNTIME_ERROR, "signalling NaN")
    except NoTruth as error:
        whole_result = isinstance(error, EmptyTruth) and payload.startswith(b'["a"')
        return ProgramVerdict(RUNNER_ERROR if whole_result else RUNTIME_ERROR, "the comparison has no truth value")
    return ProgramVerdict(ACCEPTED) if right else _wrong(header)


def _wrong(header: dict[str, Any], reason: str = "") -> ProgramVerdict:
    if header.get("unprintable"):
        return ProgramVerdict(RUNTIME_ERROR, "the result has no text")
    return ProgramVerdict(WRONG_ANSWER, reason)
