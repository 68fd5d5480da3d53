"""The `script` grader: every test is a fresh, ordinary process, as a user would run the program.

Real stdin (a pipe), real stdout, exit code 0; for functions a fresh interpreter and a fresh `Solution`. It accepts what
a real interpreter runs and the official evaluator's stand-ins do not, so its figure stands beside the official one.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

from gspo_cli.rewards.code import frames
from gspo_cli.rewards.code.code_tests import BadTests, CodeTests
from gspo_cli.rewards.code.compare import SignallingNaN, same_output
from gspo_cli.rewards.code.harness_files import FUNCTION
from gspo_cli.rewards.code.official import OUTPUT_CAP, started
from gspo_cli.rewards.code.values import NoTruth, same_value
from gspo_cli.rewards.code.verdict import ACCEPTED, EXCLUDED, GRADER, LATE, RUNTIME, WRONG, Verdict
from gspo_cli.sandbox.contract import Job, Sandbox
from gspo_cli.sandbox.process import Ended, Finished, Late

LIMIT_S = 6
START_ALLOWANCE_S = 2.0
FLAGS = ("-X", "utf8", "-X", "int_max_str_digits=50000")
READY = b"ready\n"


def grade_script(sandbox: Sandbox, program: str, tests: CodeTests, limit_s: int = LIMIT_S) -> Verdict:
    """The verdict on one program."""
    try:
        tests.check()
    except BadTests as error:
        return Verdict(EXCLUDED, str(error))
    start, total, run = time.monotonic(), len(tests.inputs), 0
    one = _run_stdin if tests.fn_name is None else _call_function
    verdict = Verdict(ACCEPTED)
    try:
        for run in range(1, total + 1):
            verdict = one(sandbox, program, tests, run - 1, limit_s)
            if verdict.verdict != ACCEPTED:
                break
    except OSError as error:
        verdict = Verdict(GRADER, f"the sandbox does not start: {error}")
    return replace(verdict, tests_run=run, tests_total=total, seconds=time.monotonic() - start)


def _run_stdin(sandbox: Sandbox, program: str, tests: CodeTests, index: int, limit_s: int) -> Verdict:
    """One test of a stdin program.

    Errors: OSError when the sandbox does not start.
    """
    done = run_program(sandbox, program, tests.inputs[index], limit_s)
    failed = failure(done)
    if failed is not None:
        return failed
    try:
        right = same_output(done.stdout.decode("utf-8", "replace"), tests.outputs[index])
    except SignallingNaN:
        return Verdict(RUNTIME, "signalling NaN")
    return Verdict(ACCEPTED if right else WRONG)


def run_program(sandbox: Sandbox, program: str, text: str, limit_s: float) -> Finished:
    """Runs a stdin program once; a second attempt if the sandbox did not start.

    Errors: OSError with what the sandbox said.
    """
    source = program.encode("utf-8", "surrogatepass")
    job = Job("program.py", {"program.py": source}, FLAGS, announce=True, cpu_s=int(limit_s) + 5)
    done = None
    for _ in range(2):
        deadline = time.monotonic() + limit_s + START_ALLOWANCE_S
        done = sandbox.start(job).run(text.encode("utf-8", "surrogatepass"), deadline, OUTPUT_CAP)
        if done.stdout.startswith(READY):
            return replace(done, stdout=done.stdout[len(READY) :])
    assert done is not None
    raise OSError(done.stderr.decode("utf-8", "replace")[-300:] or "no answer from inside")


def failure(done: Finished) -> Verdict | None:
    """The verdict on a run that did not end by itself with exit code 0."""
    if done.flooded:
        return Verdict(WRONG, "output_limit")
    if done.late:
        return Verdict(LATE, waited_s=done.waited_s)
    if done.code:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return Verdict(RUNTIME, (lines[-1] if lines else f"exit code {done.code}")[:200])
    return None


def _call_function(sandbox: Sandbox, program: str, tests: CodeTests, index: int, limit_s: int) -> Verdict:
    """One test of a function.

    Errors: OSError when the sandbox does not start.
    """
    process = started(sandbox, FUNCTION, cpu_s=limit_s + 5)
    try:
        deadline = time.monotonic() + limit_s + START_ALLOWANCE_S
        header = {"fn_name": tests.fn_name, "cap": OUTPUT_CAP, "input": tests.inputs[index]}
        frames.send(process, header, program.encode("utf-8", "surrogatepass"), deadline)
        answer, payload = frames.receive(process, deadline, OUTPUT_CAP)
        if answer.get("status") == "output_limit":
            return Verdict(WRONG, "output_limit")
        if answer.get("status") != "ok":
            return Verdict(RUNTIME, str(answer.get("error", ""))[:200])
        sent = json.loads(payload)
        if answer.get("unprintable"):
            return Verdict(RUNTIME, "the result has no text")
        right = is_json(sent) and same_value(sent, tests.expected[index])
    except Late as late:
        return Verdict(LATE, waited_s=max(process.waited_s(), late.over_s))
    except Ended:
        return Verdict(RUNTIME, "the process ended")
    except (frames.Garbled, ValueError, TypeError, LookupError, RecursionError, NoTruth):
        return Verdict(RUNTIME, "the channel was written to")
    finally:
        process.kill()
    return Verdict(ACCEPTED if right else WRONG)


def is_json(sent: object) -> bool:
    """Whether a sent value is of JSON's types alone (a tuple counts as a list where equality says so)."""
    if not isinstance(sent, list):
        return True
    kind, *parts = sent
    if kind == "d":
        return all(is_json(value) for _, value in parts)
    return kind == "i" or (kind in ("l", "t") and all(map(is_json, parts)))
