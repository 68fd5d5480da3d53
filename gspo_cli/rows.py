"""Rows of local data files: json, jsonl, parquet, or a folder of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError

SUFFIXES = (".json", ".jsonl", ".parquet")
MAX_ROWS_PER_BYTE = 10
MAX_UNPACKED, BATCH = 16 << 30, 64
"""Bytes that a parquet file may unpack to, and the rows that are unpacked at once: a few kilobytes can hold billions of
equal rows."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file, read whole."""

    name: str
    """Without folder and suffix."""
    sha256: str
    rows: list[dict[str, Any]]


def read_files(paths: Iterable[Path]) -> list[DataFile]:
    """All files; those of a folder in the order of their names.

    Errors: GspoError for a file that is missing, unreadable, of another kind, or without rows.
    """
    return [_read(file) for path in paths for file in _expand(path)]


def stream_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of one path; a jsonl file is read row by row, for files of gigabytes. Errors: as `read_files`."""
    if path.suffix != ".jsonl" or not path.is_file():
        yield from (row for file in read_files((path,)) for row in file.rows)
        return
    with path.open("rb") as lines:
        yield from (row for _, row in parse_jsonl(lines, path))


def parse_jsonl(lines: Iterable[bytes], path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(`FILE, line N`, row) for each line that is not blank. Errors: GspoError for a line that is not a JSON object."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except UnicodeDecodeError as error:
            raise not_utf8(where, error) from error
        except (ValueError, RecursionError) as error:
            raise GspoError(f"{where} is not JSON", str(error), "give one JSON object per line") from error
        if not isinstance(row, dict):
            raise GspoError(f"{where} is not an object", "a row has named fields", "give one JSON object per line")
        yield where, row


def _expand(path: Path) -> list[Path]:
    if path.is_dir():
        inner = (p.relative_to(path) for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file())
        files = sorted(path / p for p in inner if not any(part.startswith(".") for part in p.parts))
        if not files:
            raise GspoError(
                f"no data in the folder {path}", f"none of its files ends in {', '.join(SUFFIXES)}", "check the path"
            )
        return files
    if not path.is_file():
        raise GspoError(f"no data file {path}", "the path names neither a file nor a folder", "check the path")
    if path.suffix not in SUFFIXES:
        raise GspoError(f"cannot read {path}", f"the suffix must be one of {', '.join(SUFFIXES)}", "convert the file")
    return [path]


def _read(path: Path) -> DataFile:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, str(error.strerror or error)) from error
    if path.suffix == ".jsonl":
        rows = [row for _, row in parse_jsonl(content.split(b"\n"), path)]
    else:
        rows = _json(path, content) if path.suffix == ".json" else _parquet(path, content)
    if not rows:
        raise GspoError(f"{path} holds no rows", "there is nothing to evaluate", "give a file with problems")
    return DataFile(path.stem, hashlib.sha256(content).hexdigest(), rows)


def _json(path: Path, content: bytes) -> list[dict[str, Any]]:
    if not content.strip():
        return []
    try:
        value = json.loads(content)
    except UnicodeDecodeError as error:
        raise not_utf8(str(path), error) from error
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"it is not JSON: {error}") from error
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise _unreadable(path, "it is not a list of objects")
    return value


def _parquet(path: Path, content: bytes) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = []
    try:
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            stored, unpacked = file.metadata.num_rows, 0
            if stored > MAX_ROWS_PER_BYTE * len(content):
                raise _unreadable(path, f"its {len(content):,} bytes claim to hold {stored:,} rows")
            for batch in file.iter_batches(BATCH):
                unpacked += batch.nbytes
                if unpacked > MAX_UNPACKED:
                    raise _unreadable(path, f"it unpacks to more than {MAX_UNPACKED >> 30} GiB")
                rows += batch.to_pylist()
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _unreadable(path, f"it is not a complete parquet file: {reason}") from error
    return rows


def not_utf8(where: str, error: UnicodeDecodeError) -> GspoError:
    """The error for text in another encoding."""
    wide = error.encoding.upper()[:6]
    if wide in ("UTF-16", "UTF-32"):  # json recognises these by their zeros
        return GspoError(
            f"{where} is not UTF-8", f"it is {wide}, as some programs of Windows write text",
            f"convert the file: iconv -f {wide} -t UTF-8 FILE > NEW",
        )  # fmt: skip
    byte = error.object[error.start]
    return GspoError(
        f"{where} is not UTF-8",
        f"byte {error.start + 1} of it is 0x{byte:02x}, as Latin-1 and Windows-1252 write letters with accents",
        "convert the file: iconv -f LATIN1 -t UTF-8 FILE > NEW",
    )


def _unreadable(path: Path, why: str) -> GspoError:
    return GspoError(f"cannot read {path}", why, "repair the file, or give another one")


def is_unicode(*values: object) -> bool:
    """Whether all values can be written as UTF-8, which half of a surrogate pair (`\\ud800` in JSON) cannot."""
    return not any("\ud800" <= character <= "\udfff" for value in values for character in str(value))


def missing_column(where: str, column: str, row: Iterable[str], needed: Iterable[str], hint: str) -> GspoError:
    """The error for a row that lacks a column that it needs."""
    why = f"the columns are {', '.join(row)}; needed are {', '.join(needed)}"
    return GspoError(f"{where} has no {column!r}", why, hint)
