"""The `official` grader: the verdicts of LiveCodeBench's evaluator, with the expected outputs kept out of reach.

The program runs in a sandboxed process under `harness/official.py`, which imitates that evaluator; one input at a time
goes in, one output comes back, and only then is it compared, here. So a program can forge its output and nothing else.

Differs from the official evaluator: an object of the program's own equals nothing; a name that only the prelude binds
is missing; memory is limited to 2 GiB and processes to 32; 14 seconds of silence in one test (which takes defeating the
alarm) end the program; output beyond 32 MiB is a wrong answer.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

from gspo_cli.rewards.code import frames
from gspo_cli.rewards.code.code_tests import BadTests, CodeTests
from gspo_cli.rewards.code.compare import SignallingNaN, same_output
from gspo_cli.rewards.code.harness_files import OFFICIAL, harness_job
from gspo_cli.rewards.code.values import EmptyTruth, NoTruth, same_value
from gspo_cli.rewards.code.verdict import ACCEPTED, EXCLUDED, GRADER, LATE, RUNNER, RUNTIME, WRONG, Verdict
from gspo_cli.sandbox.contract import MIB, START_S, Sandbox
from gspo_cli.sandbox.process import Ended, Late, Process

LIMIT_S = 6
"""Of each test, by an alarm in the program's process."""
SILENCE_S = 14.0
OUTPUT_CAP = 32 * MIB


def grade_official(sandbox: Sandbox, program: str, tests: CodeTests, limit_s: int = LIMIT_S) -> Verdict:
    """The verdict on one program."""
    try:
        tests.check()
    except BadTests as error:
        return Verdict(EXCLUDED, str(error))
    start, total = time.monotonic(), len(tests.inputs)
    try:
        process = started(sandbox, OFFICIAL, cpu_s=(limit_s + 1) * total + 10)
    except OSError as error:
        return Verdict(GRADER, f"the sandbox does not start: {error}", tests_total=total)
    try:
        verdict = _converse(process, program, tests, limit_s)
    finally:
        process.kill()
    return replace(verdict, tests_total=total, seconds=time.monotonic() - start)


def started(sandbox: Sandbox, script: str, cpu_s: int) -> Process:
    """A process whose harness has said hello; a second attempt if the first does not.

    Errors: OSError with what the sandbox said.
    """
    problem = ""
    for _ in range(2):
        process = sandbox.start(harness_job(script, cpu_s))
        try:
            frames.receive(process, time.monotonic() + START_S, cap=0)
            return process
        except (Ended, Late, frames.Garbled):
            problem = process.last_words() or problem
            process.kill()
        except BaseException:
            process.kill()
            raise
    raise OSError(problem or "no answer from inside")


def _converse(process: Process, program: str, tests: CodeTests, limit_s: int) -> Verdict:
    """Test after test until one fails; what breaks the conversation after hello is the program's doing."""
    silence = limit_s + SILENCE_S - LIMIT_S
    end = time.monotonic() + (limit_s + 1) * len(tests.inputs) + 5
    run = 0
    try:
        header = {"fn_name": tests.fn_name, "limit_s": limit_s, "cap": OUTPUT_CAP}
        frames.send(process, header, program.encode("utf-8", "surrogatepass"), time.monotonic() + silence)
        loaded, _ = frames.receive(process, min(end, time.monotonic() + silence), cap=0)
        if loaded.get("status") != "loaded":
            return Verdict(RUNTIME, str(loaded.get("error", ""))[:200])
        for run, text in enumerate(tests.inputs, start=1):
            deadline = min(end, time.monotonic() + silence)
            frames.send(process, {}, text.encode("utf-8", "surrogatepass"), deadline)
            header, payload = frames.receive(process, deadline, OUTPUT_CAP)
            verdict = judge(header, payload, tests, run - 1)
            if verdict.verdict != ACCEPTED:
                waited_s = process.waited_s() if verdict.verdict == LATE else 0.0
                return replace(verdict, tests_run=run, waited_s=waited_s)
    except Late as late:
        return Verdict(RUNNER, "silent for too long", run, waited_s=late.over_s)
    except Ended:
        return Verdict(RUNNER, "the process ended", run)
    except (frames.Garbled, ValueError, TypeError, LookupError, RecursionError):
        return Verdict(RUNNER, "the channel was written to", run)
    return Verdict(ACCEPTED, tests_run=run)


def judge(header: dict[str, Any], payload: bytes, tests: CodeTests, index: int) -> Verdict:
    """The verdict on one test from what the harness sent.

    Errors: ValueError, TypeError, LookupError, RecursionError for what it never sends.
    """
    status = header["status"]
    if status in (LATE, RUNTIME):
        return Verdict(status, str(header.get("error") or "")[:200])
    if status == "output_limit":
        return Verdict(WRONG, "output_limit")
    if status != "ok":
        raise ValueError(status)
    text = payload.decode("utf-8", "surrogatepass")
    try:
        if tests.fn_name is None:
            right = same_output(text, tests.outputs[index])
        else:
            right = same_value(json.loads(text), tests.expected[index])
    except SignallingNaN:
        return Verdict(RUNTIME, "signalling NaN")
    except NoTruth as error:
        top = isinstance(error, EmptyTruth) and text.startswith('["a"')
        return Verdict(RUNNER if top else RUNTIME, "the comparison has no truth value")
    if right:
        return Verdict(ACCEPTED)
    return Verdict(RUNTIME, "the result has no text") if header.get("unprintable") else Verdict(WRONG)
