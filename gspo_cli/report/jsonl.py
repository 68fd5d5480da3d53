"""Strict JSON: whole files, and the lines of a log.

Strict = objects only, no `NaN` or `Infinity`, no key twice, no number that overflows, lines of at most 1 MiB. A last
line without a newline is torn (the process died while writing it): it is left out and reported. Nothing is changed on
disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.runlog.strict_json import parse_object

MAX_LINE = 1 << 20
"""Longest line of a log in bytes."""
BLOCK = 1 << 24
"""Bytes of whole lines read, hashed and parsed at a time."""


def corrupt(where: str, why: object) -> GspoError:
    """The error for a file that cannot be what was written."""
    return GspoError(
        f"{where} is corrupt",
        str(why),
        "restore the file from a copy, or move its run folder out of the study",
        ExitCode.STORAGE,
    )


def read_object(path: Path) -> dict[str, Any]:
    """A file that is one JSON object.

    Errors: GspoError (exit code STORAGE) naming the file.
    """
    try:
        return parse_object(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise corrupt(str(path), error) from error


def lines_of(block: bytes) -> list[bytes]:
    """The lines, without their newlines."""
    return block[:-1].split(b"\n")


class LogReader:
    """Gives a log's whole lines, block by block, once; afterwards knows what it read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_bytes = 0
        """Length of all whole lines so far."""
        self.torn_bytes = 0
        """Length of the torn line at the end; 0 = none."""
        self._hash = hashlib.sha256()
        self._begin = 0

    @property
    def sha256(self) -> str:
        """Hex digest of the first `num_bytes` bytes."""
        return self._hash.hexdigest()

    def corrupt(self, index: int, why: object) -> GspoError:
        """The error for line `index` (0-based) of the block given out last."""
        with self.path.open("rb") as file:
            before = file.read(self._begin).count(b"\n")
        return corrupt(f"{self.path}, line {before + index + 1},", why)

    def blocks(self) -> Iterator[bytes]:
        """Stretches of whole lines."""
        with self.path.open("rb") as file:
            while block := file.read(BLOCK):
                if not block.endswith(b"\n"):
                    block += file.readline()
                whole = block.rfind(b"\n") + 1
                self.torn_bytes = len(block) - whole
                block = block[:whole]
                self._hash.update(block)
                self._begin, self.num_bytes = self.num_bytes, self.num_bytes + whole
                if block:
                    yield block

    def parse(self, block: bytes) -> list[dict[str, Any]]:
        """The block given out last, as objects.

        Errors: GspoError (exit code STORAGE) naming file and line.
        """
        records = []
        for index, line in enumerate(lines_of(block)):
            try:
                if len(line) >= MAX_LINE:
                    raise ValueError(f"the line is longer than {MAX_LINE} bytes")
                records.append(parse_object(line.decode()))
            except ValueError as error:
                raise self.corrupt(index, error) from error
        return records
