"""Strict JSON, read fast: whole files and lines of logs.

Strict = one object, no `NaN` or `Infinity` token, no key twice, no number that overflows. A log's last line without a
newline is torn (the process died while writing it): it is left out and reported, and the file is never changed.

Not covered: a number that overflows in a log line is seen only by who collects it (`load.py`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError

MAX_LINE = 1 << 20
"""Longest line of a log in bytes; no writer of ours comes near it."""
CHUNK = 1 << 22
"""Bytes read and hashed at a time."""


def corrupt(where: str, why: str) -> GspoError:
    """The error for a file that cannot be what was written."""
    return GspoError(
        f"{where} is corrupt", why, "restore the file from a copy, or move its run folder away", ExitCode.STORAGE
    )


def _refuse_constant(token: str) -> float:
    raise ValueError(f"{token} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text} overflows")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(k for k in keys if keys.count(k) > 1)!r} stands twice in one object")
    return table


_strict = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique)
_fast = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_object(text: str) -> dict[str, Any]:
    """One JSON object, checked in full.

    Errors: ValueError for anything else, with the reason.
    """
    try:
        value = _strict.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """A file that is one JSON object.

    Errors: GspoError (exit code STORAGE) naming the file.
    """
    try:
        return parse_object(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise corrupt(str(path), str(error)) from error


def parse_line(raw: bytes) -> dict[str, Any]:
    """One line of a log with its newline; the same verdicts as `parse_object`, several times as fast.

    The plain decoder keeps the last of two equal keys and so returns fewer keys than the text has. Every key brings a
    colon: as many colons as keys proves that none stands twice. Any other count (a colon in a string, deeper nesting)
    is left to the strict parser.
    """
    if len(raw) > MAX_LINE:
        raise ValueError(f"the line is longer than {MAX_LINE} bytes")
    text = raw[:-1].decode()
    try:
        record, end = _fast.raw_decode(text)
    except (RecursionError, ValueError):
        return parse_object(text)
    if type(record) is dict and end == len(text):
        num_keys = len(record)
        for value in record.values():
            if type(value) is dict:
                num_keys += len(value)
        if text.count(":") == num_keys:
            return record
    return parse_object(text)


class LogReader:
    """Iterates over the whole lines of a log, once; afterwards knows what it read.

    Errors: GspoError (exit code STORAGE) naming file and line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 0
        """1-based number of the line last given out."""
        self.num_bytes = 0
        """Length of all whole lines."""
        self.torn_bytes = 0
        """Length of the torn line at the end; 0 = none."""
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Hex digest of the first `num_bytes` bytes."""
        return self._hash.hexdigest()

    def corrupt(self, why: object) -> GspoError:
        """The error for the line last given out."""
        return corrupt(f"{self.path}, line {self.line},", str(why))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as file:
            while lines := file.readlines(CHUNK):
                if not lines[-1].endswith(b"\n"):
                    self.torn_bytes = len(lines.pop())
                whole = b"".join(lines)
                self._hash.update(whole)
                self.num_bytes += len(whole)
                yield from self._parse(lines)

    def _parse(self, lines: list[bytes]) -> Iterator[dict[str, Any]]:
        for raw in lines:
            self.line += 1
            try:
                yield parse_line(raw)
            except ValueError as error:
                raise self.corrupt(error) from error
