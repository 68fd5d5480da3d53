"""Where output goes: results on stdout, everything else on stderr; colour only on a terminal without NO_COLOR."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import typer
from rich import box
from rich.table import Table

from gspo_cli.cli.inert import InertConsole
from gspo_cli.errors import ExitCode, GspoError

P = ParamSpec("P")
R = TypeVar("R")

if os.environ.get("NO_COLOR"):  # neither rich nor typer lets it beat what forces colour
    for _name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS"):
        os.environ.pop(_name, None)
out = InertConsole(soft_wrap=True)
err = InertConsole(stderr=True)

settings = {"debug": False, "quiet": False, "verbose": False}


def note(text: str, prose: bool = False) -> None:
    """A line for the reader, on stderr, unless `-q`. On a terminal, prose is wrapped between words; anything else is
    left whole, so that paths and commands can be copied.
    """
    if not settings["quiet"]:
        err.print(text, soft_wrap=not (prose and err.is_terminal))


def table(*titles: str, title: str | None = None) -> Table:
    """A table in the one style that all commands have."""
    return Table(*titles, title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)


def print_json(value: dict[str, Any] | Iterable[dict[str, Any]]) -> None:
    """One object, or one object a line for a list."""
    for item in [value] if isinstance(value, dict) else value:
        sys.stdout.write(json.dumps(item, allow_nan=False, default=str) + "\n")


def report(error: Exception, as_json: bool) -> ExitCode:
    """Prints an error in its three parts (or as one JSON object) on stderr and gives its exit code.

    Errors: with `--debug`, the error itself.
    """
    if settings["debug"]:
        raise error
    if not isinstance(error, GspoError):
        error = GspoError(
            f"unexpected {type(error).__name__}: {error}",
            "this is a defect of gspo or of a library under it",
            "run again with `gspo --debug ...` and report the traceback",
            ExitCode.UNEXPECTED,
        )
    if (error.shared or error.code == ExitCode.USER_ERROR) and os.environ.get("RANK", "0") != "0":
        return error.code  # the first rank says it
    if as_json:
        parts = {"error": error.message, "why": error.why, "do": error.hint, "exit": int(error.code)}
        sys.stderr.write(json.dumps(parts) + "\n")
    else:
        err.print(str(error), soft_wrap=True)
    return error.code


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Turns what a command raises into the message and exit code that the conventions promise."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt as error:
            note("interrupted")
            raise typer.Exit(130) from error
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            raise typer.Exit(report(error, bool(kwargs.get("json_", False)))) from error

    return run
