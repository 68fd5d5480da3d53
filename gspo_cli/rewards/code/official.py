"""The `official` grader: the verdicts of LiveCodeBench's evaluator, with the expected outputs kept out of reach. And
the conversation with a harness, which `script` has too.

A harness (`harness/*.py`) is what runs beside the program in a sandbox; `harness/official.py` imitates that evaluator.
It never holds an expected output, and nothing in it decides a verdict: one input goes in, one output comes back, and
only then are they compared, here. So a program can forge its own output and nothing else. The harness's files are
copied into the sandbox, so they use the standard library and each other only; they stay small because every program
compiles them again.

Differs from the official evaluator: an object of a class of the program's own equals nothing; a name that only the
prelude binds is missing; memory is limited to 2 GiB and processes to 32; 14 seconds of silence in one test (which takes
defeating the alarm) end the program; output beyond 32 MiB is a wrong answer.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from gspo_cli.rewards.code import outputs
from gspo_cli.rewards.code.code_tests import BadTests, CodeTests
from gspo_cli.rewards.code.harness.channel import LENGTHS
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
from gspo_cli.sandbox.contract import MIB, START_S, Job, Sandbox
from gspo_cli.sandbox.process import DeadlinePassed, PipeClosed, Process

PACKAGE = "gspo_cli.rewards.code.harness"
SHARED = ("candidate.py", "channel.py")
FLAGS = {
    "official": ("-S",),  # the official evaluator's programs have no `exit` and `quit`, which `site` would add
    "function": ("-X", "utf8"),
}
OUTPUT_CAP = 32 * MIB
MAX_HEADER = 1 << 16


class Garbled(Exception):
    """A frame that the harness never sends: the program wrote into the channel."""


FORGED = (Garbled, ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
"""What reading a message may raise. Nothing that comes out of the sandbox is trusted, so it is the program's fault."""


def excerpt(text: object) -> str:
    """The beginning of a program's own words, fit for terminals and files."""
    return "".join(c if c.isprintable() else " " for c in text[:200]) if isinstance(text, str) else ""


def start_harness(sandbox: Sandbox, name: Literal["official", "function"], cpu_s: int) -> Process:
    """A process whose harness `name` has said hello; a second attempt if the first does not.

    Errors: OSError with what the sandbox printed.
    """
    problem = ""
    for _ in range(2):
        process = sandbox.start(Job("start.py", _files(name), FLAGS[name], cpu_s=cpu_s))
        try:
            receive(process, time.monotonic() + START_S, cap=0)
            return process
        except (PipeClosed, DeadlinePassed, Garbled):
            problem = process.stderr_line() or problem
            process.kill()
        except BaseException:
            process.kill()
            raise
    raise OSError(problem or "no answer from inside")


@cache
def _files(name: str) -> dict[str, bytes]:
    """`start.py`, the modules that it imports, and empty packages above them."""
    source, folder = files(PACKAGE), PACKAGE.replace(".", "/")
    modules = {f"{folder}/{module}": source.joinpath(module).read_bytes() for module in SHARED}
    packages = {f"{parent}/__init__.py": b"" for parent in Path(folder).parents if parent.name}
    return modules | packages | {"start.py": source.joinpath(f"{name}.py").read_bytes()}


def send(process: Process, header: dict[str, Any], payload: bytes, deadline: float) -> None:
    """One frame to the harness. Errors: PipeClosed, DeadlinePassed."""
    head = json.dumps(header).encode()
    process.write(LENGTHS.pack(len(head), len(payload)) + head + payload, deadline)


def needed_bytes(expected: str) -> int:
    """More than any right output takes: blanks at line ends, longer numerals, escaped characters."""
    return min(OUTPUT_CAP, MIB + 64 * len(expected))


def may_be_right(payload: bytes, expected: str) -> bool:
    """Whether typed JSON has no more values than the expected result explains; it is counted before it is parsed.

    32 MiB of empty lists take 800 MiB when parsed. A right value takes at most six elements and four brackets for one
    of the expected value, as a numpy scalar does.
    """
    most = 8 * (16 + sum(map(expected.count, ",[{")))
    return payload.count(b",") <= most and payload.count(b"[") <= most


def receive(process: Process, deadline: float, cap: int) -> tuple[dict[str, Any], bytes | None]:
    """The next frame; its payload is not read, and None, if it is longer than `cap` bytes.

    Errors: PipeClosed, DeadlinePassed; Garbled for what the harness never sends.
    """
    head_size, size = LENGTHS.unpack(process.read(LENGTHS.size, deadline))
    if head_size > MAX_HEADER or size > (OUTPUT_CAP if cap else 0):
        raise Garbled
    try:
        header = json.loads(process.read(head_size, deadline))
    except (ValueError, RecursionError) as error:
        raise Garbled from error
    if not isinstance(header, dict):
        raise Garbled
    return header, process.read(size, deadline) if size <= cap else None


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
        except outputs.SignallingNaN:
            return ProgramVerdict(RUNTIME_ERROR, "signalling NaN")
        except outputs.NoTruth as error:
            whole_result = isinstance(error, outputs.EmptyTruth) and payload.startswith(b'["a"')
            return ProgramVerdict(rules.broken if whole_result else RUNTIME_ERROR, "the comparison has no truth value")
    if right:
        return ProgramVerdict(ACCEPTED)
    if header.get("unprintable"):
        return ProgramVerdict(RUNTIME_ERROR, "the result has no text")
    return ProgramVerdict(WRONG_ANSWER, reason)


def _is_right(payload: bytes, tests: CodeTests, index: int, plain: bool) -> bool:
    """Whether an output or result is as expected. Errors: SignallingNaN, NoTruth, and those of `FORGED`."""
    if tests.fn_name is None:
        return outputs.same_output(payload.decode("utf-8", "surrogatepass"), tests.outputs[index])
    if not may_be_right(payload, tests.outputs[index]):
        return False
    sent = outputs.read_value(payload)
    return (outputs.is_plain(sent) or not plain) and outputs.same_value(sent, tests.expected[index])
