"""User errors in three parts, and the exit codes of the command line."""

import difflib
import re
import shlex
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

PASSWORD = re.compile(r"(?<=://)[^/\s@]+(?=@)")
"""The user and password of an address."""


class ExitCode(IntEnum):
    """The exit codes of the command line."""

    OK = 0
    UNEXPECTED = 1
    USER_ERROR = 2
    CHECK_FAILED = 3
    GUARD = 4
    ENGINE = 5
    STORAGE = 6
    SIGHUP = 129
    SIGINT = 130
    SIGTERM = 143


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """What to do about a name that is unknown: the one that it may be a slip for, if any is near."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def quoted(path: object) -> str:
    """A path as it stands in a command that the user may paste."""
    return shlex.quote(str(path))


def reason(error: BaseException) -> str:
    """Why something failed, on one line: the first that an error says, or its type if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def first_fault(error: "ValidationError") -> str:
    """Where the first thing is that a validation found wrong, and what."""
    fault = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".removeprefix(": ")


class GspoError(Exception):
    """An error that the user can fix: what happened, why, and what to do."""

    def __init__(self, message: str, why: str, hint: str, code: ExitCode = ExitCode.USER_ERROR) -> None:
        message, why = (PASSWORD.sub("...", text) for text in (message, why))
        super().__init__(message)
        self.message = message
        self.why = why
        self.hint = hint
        self.code = code
        self.shared = False
        """Whether every rank raises it, so that rank 0 alone should report it."""

    def as_dict(self) -> dict[str, str]:
        """The three parts, as `--json` prints them."""
        return {"error": self.message, "why": self.why, "do": self.hint}

    def __str__(self) -> str:
        return f"error: {self.message}\nwhy:   {self.why}\ndo:    {self.hint}"
