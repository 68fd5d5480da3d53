"""Rows of local data: json, jsonl, parquet, or a folder of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError

SUFFIXES = (".json", ".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class File:
    """One data file, read whole."""

    name: str
    """Without folder and ending."""
    sha256: str
    rows: list[dict[str, Any]]


def read_files(paths: list[Path] | tuple[Path, ...]) -> list[File]:
    """All files, folders in the order of their names.

    Errors: GspoError for what is missing, unreadable, of another kind, or without rows.
    """
    return [_read(file) for path in paths for file in _files(path)]


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        inner = (p.relative_to(path) for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file())
        found = sorted(path / p for p in inner if not any(part.startswith(".") for part in p.parts))
        if not found:
            raise GspoError(
                f"no data in the folder {path}", f"none of its files ends in {', '.join(SUFFIXES)}", "check the path"
            )
        return found
    if not path.is_file():
        raise GspoError(f"no data file {path}", "the path names neither a file nor a folder", "check the path")
    if path.suffix not in SUFFIXES:
        raise GspoError(f"cannot read {path}", f"the ending must be one of {', '.join(SUFFIXES)}", "convert the file")
    return [path]


def _read(path: Path) -> File:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, str(error.strerror or error)) from error
    readers = {".json": _json, ".jsonl": _jsonl, ".parquet": _parquet}
    rows = readers[path.suffix](path, content)
    if not rows:
        raise GspoError(f"{path} holds no rows", "there is nothing to evaluate", "give a file with problems")
    return File(path.stem, hashlib.sha256(content).hexdigest(), rows)


def _json(path: Path, content: bytes) -> list[dict[str, Any]]:
    if not content.strip():
        return []
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"it is not JSON: {error}") from error
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise _unreadable(path, "it is not a list of objects")
    return value


def _jsonl(path: Path, content: bytes) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _unreadable(path, f"line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise _unreadable(path, f"line {number} is not an object")
        rows.append(row)
    return rows


def _parquet(path: Path, content: bytes) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(content)).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, f"it is not a whole parquet file: {str(error).splitlines()[0]}") from error
    return rows


def _unreadable(path: Path, why: str) -> GspoError:
    return GspoError(f"cannot read {path}", why, "mend the file, or give another one")
