"""The chain of `metrics.jsonl`: every line numbered, and holding the hash of the line before."""

from __future__ import annotations

from dataclasses import dataclass

from gspo_cli.runlog.log import canonical, short_hash
from gspo_cli.runlog.strict_json import parse_object

MAX_LINE = 1 << 20
"""Longest line of a log in bytes."""
KEYS = {"seq", "step", "kind", "mini_batch", "metrics", "counts", "nonfinite", "prev"}


class Broken(Exception):
    """A whole line that cannot be what was written; never repaired, because only an edit or a bad disk makes one."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line


@dataclass(frozen=True)
class Position:
    """Where a log stands after a number of whole lines."""

    num_bytes: int
    num_lines: int
    head: str
    """The hash that the next line must hold; before the first line, that of the configuration."""


def split_torn(data: bytes) -> tuple[bytes, bytes]:
    """The whole lines, and what is torn: a last line without its newline, and a run of NUL bytes at the end, which a
    file system leaves after a loss of power."""
    whole = data.rfind(b"\n") + 1
    return data[:whole], data[whole:]


def follow(data: bytes, head: str, lines: int = 0) -> Position:
    """Checks whole lines from one position to the end.

    Errors: Broken for the first line that is not canonical strict JSON, has a wrong number, or does not hold the hash
    of the line before.
    """
    for number, line in enumerate(data.splitlines(keepends=True), start=lines):
        head = check_line(line, number, head)
    return Position(len(data), lines + data.count(b"\n"), head)


def check_line(line: bytes, seq: int, head: str) -> str:
    """The hash of a line that has this number and follows that hash.

    Errors: Broken.
    """
    number = seq + 1
    if len(line) > MAX_LINE:
        raise Broken(number, f"longer than {MAX_LINE} bytes")
    try:
        text = line.decode("ascii").removesuffix("\n")
        record = parse_object(text)
    except ValueError as error:
        raise Broken(number, str(error)) from error
    if record.keys() != KEYS or canonical(record) != text:
        raise Broken(number, "not written by this tool")
    if record["seq"] != seq:
        raise Broken(number, f"seq is {record['seq']}, not {seq}: lines are missing, repeated or in another order")
    if record["prev"] != head:
        raise Broken(number, "it does not follow from the line before, so one of the two was changed")
    return short_hash(text)
