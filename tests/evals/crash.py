"""Runs `gspo` and kills it with SIGKILL before its n-th file operation, resumes it and kills it there again, and lets
the third attempt finish; for each n asked for.

    python crash.py PORTION N,N,... ARGUMENTS       `{n}` in an argument is the number

Prints one line for each n: n and the three exit statuses (-9 = killed). Every attempt is a process of its own, forked
from this one, which has done the imports.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers.models.qwen3.modeling_qwen3  # noqa: F401

import gspo_cli.evals.command  # noqa: F401
from gspo_cli.cli.main import app
from gspo_cli.evals import runner


def main() -> None:
    runner.PORTION = int(sys.argv[1])
    for n in map(int, sys.argv[2].split(",")):
        words = [a.replace("{n}", str(n)) for a in sys.argv[3:]]
        attempts = (n, words), (n, [*words, "--resume"]), (0, [*words, "--resume"])
        print("statuses", n, *(forked(at, arguments) for at, arguments in attempts), flush=True)


def forked(n: int, arguments: list[str]) -> int:
    """The exit status of an attempt that is killed before operation n (0 = never)."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        run(n, arguments)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(n: int, arguments: list[str]) -> None:
    """Does not return."""
    left = [n]

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*args, **kwargs)

        return call

    for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (shutil, "rmtree"), (Path, "mkdir")):
        setattr(owner, name, counted(getattr(owner, name)))
    try:
        app(arguments)
    except SystemExit as end:
        os._exit(int(end.code or 0))
    os._exit(0)


if __name__ == "__main__":
    main()
