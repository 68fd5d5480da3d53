"""Start the harness in a sandbox and exchange frames with it.

The harness (`harness/*.py`) is what runs beside the program. It never holds an expected output, and nothing in it
decides a verdict. Its files are copied into the sandbox, so they use the standard library and each other only; they
stay small because every program compiles them again.
"""

from __future__ import annotations

import json
import time
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from gspo_cli.rewards.code.harness.channel import LENGTHS
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
