"""Terminal output: results on stdout, everything else on stderr, colour only on a terminal without NO_COLOR."""

import errno
import functools
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.sanitize import sanitize

Command = TypeVar("Command", bound=Callable[..., Any])


class SafeConsole(Console):
    """A console that escapes control characters and interprets neither markup nor emoji, so untrusted text is safe."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Render a string, sanitized. Rich calls this for every string, in tables too."""
        return super().render_str(sanitize(text), **settings)


if os.environ.get("NO_COLOR"):  # rich and typer let these override NO_COLOR
    for _name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS"):
        os.environ.pop(_name, None)
if os.environ.get("COLUMNS") == "0":  # some terminals of editors; rich would print nothing
    del os.environ["COLUMNS"]
out = SafeConsole(soft_wrap=True)
err = SafeConsole(stderr=True)

settings = {"debug": False, "quiet": False, "verbose": False}


def is_live() -> bool:
    """Whether to show live views: on a terminal, without `-q` and `-v`."""
    return sys.stderr.isatty() and not settings["quiet"] and not settings["verbose"]


def note(*lines: str, prose: bool = False) -> None:
    """Print lines on stderr, unless `-q`. On a terminal, prose is wrapped at words; any other text stays on one line,
    so that paths and commands can be copied.
    """
    for text in () if settings["quiet"] else lines:
        err.print(text, soft_wrap=not (prose and err.is_terminal))


def note_torch() -> None:
    """Say that torch is about to be loaded, which takes seconds, unless it is."""
    if "torch" not in sys.modules:
        note("loading torch")


def print_json(value: dict[str, Any] | Iterable[dict[str, Any]]) -> None:
    """Print one object, or a list as one object per line."""
    for item in [value] if isinstance(value, dict) else value:
        sys.stdout.write(json.dumps(item, allow_nan=False, default=str) + "\n")


def print_result(facts: dict[str, Any], as_json: bool, text: str | None = None) -> None:
    """Print one JSON object, or else `text`, by default the first of the facts."""
    if as_json:
        print_json(facts)
    else:
        out.print(next(iter(facts.values())) if text is None else text)


def table(*titles: str, rows: Iterable[Iterable[object]] = (), title: str | None = None, **of_columns: Any) -> Table:
    """A table in the style of all commands, whose columns have these settings of Rich."""
    columns = (Column(name, **of_columns) for name in titles)
    made = Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        made.add_row(*map(str, row))
    return made


def print_table(rendered: Table) -> None:
    """Print a table fitted to the width of the terminal."""
    out.print(rendered, soft_wrap=False)


def print_whole(rendered: Table) -> None:
    """Print a table with every cell on one line, wider than the terminal if need be, so that names can be copied."""
    rendered.width = rendered.__rich_measure__(out, out.options.update(max_width=100_000)).maximum
    out.print(rendered)


class Shown:
    """What is drawn on the terminal while its context lasts, if anything is."""

    live: Any = None
    """A `rich.live.Live` or `rich.progress.Progress`; None without a terminal."""

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()


def number(value: float | None, form: str) -> str:
    """A formatted number, or `n/a`."""
    return "n/a" if value is None else format(value, form)


def clock(seconds: float) -> str:
    """A duration such as `0:07`, `12:30` or `3:05:00`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def plural(count: int, noun: str) -> str:
    """A count with its noun, such as `1 run` or `2 runs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


RANK_0_REPORTS_S = 3.0
"""How long another rank waits, so that rank 0 can report an error that all of them have."""


def report(error: Exception, as_json: bool) -> ExitCode:
    """Print an error on stderr, in its three parts or as one JSON object, and return its exit code.

    Errors: with `--debug`, the error itself.
    """
    if settings["debug"]:
        raise error
    if isinstance(error, OSError) and (error.filename is not None or error.errno in DISK):
        error = _of_a_file(error)
    if not isinstance(error, GspoError):
        error = GspoError(
            f"unexpected {type(error).__name__}: {error}",
            "this is a bug in gspo or in a library it uses",
            "run `gspo --debug ...` again and report the traceback",
            ExitCode.UNEXPECTED,
        )
    everyones = error.shared or error.code == ExitCode.USER_ERROR or error.code >= ExitCode.SIGHUP
    if everyones and os.environ.get("RANK", "0") != "0":
        time.sleep(RANK_0_REPORTS_S)  # the launcher ends all ranks as soon as one has ended
        return error.code
    if as_json:
        sys.stderr.write(json.dumps(error.as_dict() | {"exit": int(error.code)}) + "\n")
    else:
        err.print(str(error), soft_wrap=True)
    return error.code


DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""What is wrong with the disk rather than with a path."""


def _of_a_file(error: OSError) -> GspoError:
    """What the operating system refuses about a file (a long name, no permission, a folder) is no defect of gspo."""
    code = ExitCode.STORAGE if error.errno in DISK else ExitCode.USER_ERROR
    return GspoError(
        f"cannot use {error.filename or 'the disk'}", f"{error.strerror or error}",
        "check the path, who may read and write it, and the room on its disk", code,
    )  # fmt: skip


class Commands(typer.Typer):
    """Commands whose exceptions become error messages and exit codes."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Command], Command]:
        """Register a function as a command, as Typer does."""
        register = super().command(name, **settings)
        return lambda function: register(_with_errors(function))


def reader_is_gone() -> bool:
    """Whether nobody reads stdout any more, as after `| head`."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _with_errors(function: Command) -> Command:
    """The function, ending with a message and an exit code instead of an exception."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt as error:
            note("interrupted")
            raise typer.Exit(ExitCode.SIGINT) from error
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if isinstance(error, BrokenPipeError) and reader_is_gone():
                out.on_broken_pipe()  # ends the program
            raise typer.Exit(report(error, bool(kwargs.get("json_", False)))) from error

    return cast(Command, run)
