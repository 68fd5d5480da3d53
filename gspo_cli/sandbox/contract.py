"""What a sandbox is: it starts one Python program at a time and says what it enforces."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gspo_cli.sandbox.process import Process

MIB = 1 << 20
START_S = 20.0
"""Seconds that a sandbox may take until its program runs; only an overloaded machine comes near."""


@dataclass(frozen=True)
class Limits:
    """What one program may use, each process of it where not said otherwise."""

    address_space: int = 2048 * MIB
    processes: int = 32
    """Of the program in all, threads included."""
    file_size: int = 64 * MIB
    scratch: int = 64 * MIB
    """All files of the program in all."""
    open_files: int = 64


@dataclass(frozen=True)
class Job:
    """A Python program to start."""

    script: str
    """Which of `files` runs."""
    files: dict[str, bytes] = field(repr=False)
    """Name -> content: read-only for the program, in a folder of their own."""
    flags: tuple[str, ...] = ()
    """Of the interpreter."""
    arguments: tuple[str, ...] = ()
    announce: bool = False
    """Print a line `ready` to stdout before the interpreter starts, so that a program without a protocol of its own
    can be told from a sandbox that did not start."""
    cpu_s: int = 20
    """CPU seconds after which the kernel ends the process: a backstop, the grader's clock comes first."""

    def write(self, folder: Path) -> None:
        """Its files, where a sandbox takes them from a folder."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


class Sandbox(Protocol):
    """The seam between graders and isolation."""

    kind: str
    """`bwrap`, `sandlock` or `unsafe-local`."""

    def start(self, job: Job) -> Process:
        """Starts a program; its output says whether that worked.

        Errors: OSError when not even the sandbox's own program starts.
        """

    def facts(self) -> dict[str, object]:
        """What is enforced, for summaries: kind, versions, `process_limit`, `nested_userns`, ..."""

    def close(self) -> None:
        """Ends every program that still runs."""
