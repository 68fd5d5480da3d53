"""Which sandbox: bubblewrap, else sandlock, else a refusal. Nothing is ever chosen silently."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from gspo_cli.errors import GspoError
from gspo_cli.sandbox.bare import Bare
from gspo_cli.sandbox.bwrap import Bubblewrap
from gspo_cli.sandbox.bwrap import is_installed as has_bwrap
from gspo_cli.sandbox.contract import Limits, Sandbox
from gspo_cli.sandbox.interpreter import Interpreter, find_interpreter
from gspo_cli.sandbox.landlock import Landlock
from gspo_cli.sandbox.landlock import is_usable as has_sandlock
from gspo_cli.sandbox.probe import fault
from gspo_cli.sandbox.process_limit import find_process_limit

KINDS = ("auto", "bwrap", "sandlock")
REMEDY = (
    "install bubblewrap (apt install bubblewrap) and allow user namespaces (Docker: --security-opt seccomp=unconfined; "
    "Ubuntu 24.04: an AppArmor profile for bwrap), or pip install sandlock on Linux 6.7 or later; --unsafe-local runs "
    "the programs without any isolation"
)


@dataclass(frozen=True)
class SandboxChoice:
    """What the user wants programs to run in."""

    kind: str = "auto"
    unsafe_local: bool = False
    """Run them without isolation; recorded wherever their verdicts go."""
    python: str | None = None
    """Another interpreter than the running one."""


ANY_SANDBOX = SandboxChoice()


def open_sandbox(choice: SandboxChoice = ANY_SANDBOX) -> Sandbox:
    """The sandbox of that choice, tried out.

    Errors: GspoError when none works here and `unsafe_local` does not waive it.
    """
    if not sys.platform.startswith("linux"):
        raise GspoError("programs are graded on Linux only", f"this is {sys.platform}", "run it in a Linux container")
    interpreter, limits = find_interpreter(choice.python), Limits()
    if choice.unsafe_local:
        return Bare(interpreter, limits)
    if choice.kind not in KINDS:
        raise GspoError(f"no sandbox {choice.kind!r}", f"there are {', '.join(KINDS)}", "name one of them")
    tried = []
    for name in ("bwrap", "sandlock") if choice.kind == "auto" else (choice.kind,):
        made = MAKERS[name](interpreter, limits)
        problem = f"{name} is not installed" if made is None else fault(made)
        if made is not None and problem is None:
            return made
        if made is not None:
            made.close()
        tried.append(f"{name}: {problem}")
    raise GspoError("no sandbox for the programs to grade", "; ".join(tried), REMEDY)


def _bwrap(interpreter: Interpreter, limits: Limits) -> Sandbox | None:
    if not has_bwrap():
        return None
    return Bubblewrap(interpreter, limits, find_process_limit(limits.processes, interpreter.prefix))


def _sandlock(interpreter: Interpreter, limits: Limits) -> Sandbox | None:
    return Landlock(interpreter, limits) if has_sandlock() else None


MAKERS: dict[str, Callable[[Interpreter, Limits], Sandbox | None]] = {"bwrap": _bwrap, "sandlock": _sandlock}
