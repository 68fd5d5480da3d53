"""A file of rows to grade, checked as a whole before any of them is graded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.rewards.graders import Grader

_KINDS = {str: "a string", int: "a number", float: "a number", dict: "an object", list: "a list"}


def read_rows(path: Path, grader: Grader) -> list[dict[str, Any]]:
    """The rows of a jsonl file, each with an `id` and the grader's fields.

    Errors: GspoError for a file that cannot be read or is empty, and for the first line that is no such row.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise GspoError(f"cannot read {path}", error.strerror or str(error), "name a jsonl file") from error
    fields = {"id": (str, int), **grader.fields}
    rows = [_row(line, f"line {i} of {path}", fields) for i, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise GspoError(f"{path} holds no rows", "there is nothing to grade", f"one object a line with {_list(fields)}")
    return rows


def _row(line: bytes, where: str, fields: dict[str, tuple[type, ...]]) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise GspoError(f"{where} is no JSON", str(error), "the file must be jsonl: one object a line") from error
    if not isinstance(row, dict):
        raise GspoError(f"{where} is no object", "a row has named fields", f"give each row {_list(fields)}")
    for name, types in fields.items():
        if name not in row:
            had = f"it has {', '.join(map(repr, row))}" if row else "it has none"
            raise GspoError(f"{where} has no field {name!r}", had, f"give each row {_list(fields)}")
        if not isinstance(row[name], types) or isinstance(row[name], bool):
            kinds = " or ".join(dict.fromkeys(_KINDS.get(kind, kind.__name__) for kind in types))
            given = type(row[name]).__name__
            raise GspoError(f"field {name!r} in {where} is {given}", f"it must be {kinds}", "mend that line")
    return row


def _list(fields: dict[str, tuple[type, ...]]) -> str:
    return ", ".join(map(repr, fields))
