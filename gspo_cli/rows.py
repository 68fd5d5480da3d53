"""Rows of local data files (json, jsonl, parquet, csv), within limits of size, each with the place where it stands."""

import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.runlog.fs import require_regular
from gspo_cli.runlog.strict_json import unique_keys

SUFFIXES = (".json", ".jsonl", ".parquet", ".csv")
MAX_ROW = 1 << 28
"""Bytes of a row. The tests of one programming problem fill up to a hundred million. An endless line, or a cell that
was packed into a few kilobytes, would fill the memory."""
MAX_JSON = 1 << 30
"""Bytes of a json or csv file, which is read at once."""
MAX_ROWS_PER_BYTE = 10
MAX_UNPACKED, BATCH = 16 << 30, 64
"""Bytes that a parquet file may unpack to, and the rows that are unpacked at once: a few kilobytes can hold billions of
equal rows."""

HEADER = re.compile(r'(?:"[^"]*"|[^"\r\n])*')
"""The first line of a csv file, with the line breaks of quoted names."""

Row = dict[str, Any]
Located = tuple[str, Row]
"""`FILE, line N` or `FILE, row N`, and the row that stands there."""


def data_files(path: Path) -> list[Path]:
    """The file itself, or those of a folder in the order of their names. Errors: GspoError if there are none."""
    if not path.is_dir():
        return [path]
    inner = (p.relative_to(path) for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file())
    files = sorted(path / p for p in inner if not any(part.startswith(".") for part in p.parts))
    if not files:
        why = f"none of its files ends in {', '.join(SUFFIXES)}"
        raise GspoError(f"no data in the folder {path}", why, "check the path")
    return files


def read_rows(path: Path) -> Iterator[Located]:
    """The rows of a file, at least one; those of a jsonl or parquet file one after the other, for files of gigabytes.

    A json file holds a list of objects, or one object per line, as many tools write it.
    Errors: GspoError for a file that is missing, unreadable, of another kind, or beyond the limits.
    """
    if not path.is_file():
        raise GspoError(f"no data file {path}", "the path names no file", "check the path")
    if path.suffix not in SUFFIXES:
        raise GspoError(f"cannot read {path}", f"the suffix must be one of {', '.join(SUFFIXES)}", "convert the file")
    if path.suffix == ".parquet":
        return number_rows(path, _parquet(path))
    if path.suffix == ".csv":
        return _csv(path)
    if path.suffix == ".jsonl" or _starts_with_object(path):
        return read_lines(path)
    return number_rows(path, _list(path))


def read_lines(path: Path) -> Iterator[Located]:
    """The rows of a jsonl file, whatever its name, without blank lines. Errors: as `read_rows`."""
    empty = True
    try:
        require_regular(path)
        with path.open("rb") as file:
            for number, line in enumerate(iter(partial(file.readline, MAX_ROW + 1), b""), start=1):
                where = f"{path}, line {number}"
                if len(line) > MAX_ROW:
                    raise _too_long(where)
                if not line.strip():
                    continue
                row = _parse(where, line)
                if not isinstance(row, dict):
                    hint = "give one JSON object per line"
                    raise GspoError(f"{where} is not an object", "a row has named fields", hint)
                empty = False
                yield where, row
    except OSError as error:
        raise _unreadable(path, str(error.strerror or error)) from error
    if empty:
        raise _no_rows(path)


def number_rows(source: str | Path, rows: Iterable[Row]) -> Iterator[Located]:
    """(`SOURCE, row N`, row), from row 1. Errors: GspoError if there are none."""
    number = 0
    for number, row in enumerate(rows, start=1):
        yield f"{source}, row {number}", row
    if not number:
        raise _no_rows(source)


def read_json(path: Path) -> Any:
    """The content of a file that is read at once. Errors: GspoError for one that is unreadable or too large."""
    return _parse(str(path), _whole(path))


def _whole(path: Path) -> bytes:
    try:
        require_regular(path)
        if (size := path.stat().st_size) > MAX_JSON:
            raise _unreadable(path, f"it has {size:,} bytes, and a file that is read at once at most {MAX_JSON:,}")
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, str(error.strerror or error)) from error


def _starts_with_object(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4096).lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n").startswith(b"{")
    except OSError as error:
        raise _unreadable(path, str(error.strerror or error)) from error


def _list(path: Path) -> list[Row]:
    if path.stat().st_size == 0:
        return []
    value = read_json(path)
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise _unreadable(path, "it is not a list of objects")
    return value


def _csv(path: Path) -> Iterator[Located]:
    """The rows of a file with column names in its first line; every value is text, and what a row lacks is None.

    Values are separated by commas, or where the first line has none, by semicolons or tabs, as spreadsheets of many
    languages write them.
    """
    usual = csv.field_size_limit(MAX_ROW)
    try:
        text = _whole(path).decode("utf-8-sig")
        separator = _separator(text)
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        if twice := [name for name, count in Counter(reader.fieldnames or ()).items() if count > 1]:
            raise _unreadable(path, f"it has two columns {twice[0]!r}")
        empty = True
        for row in reader:
            if None in row:
                raise _unreadable(path, f"line {reader.line_num} has more values than the first line has names")
            empty = False
            yield f"{path}, line {reader.line_num}", row
    except UnicodeDecodeError as error:
        raise _not_utf8(str(path), error) from error
    except csv.Error as error:
        raise _unreadable(
            path, f"line {reader.line_num} is not CSV with {separator!r} between values: {error}"
        ) from error
    finally:
        csv.field_size_limit(usual)  # it is the limit of all readers of the process
    if empty:
        raise _no_rows(path)


def _separator(text: str) -> str:
    """What separates the names in the first line of a csv file, outside of quotes."""
    header = HEADER.match(text)
    bare = re.sub(r'"[^"]*"', "", header[0] if header else "")
    return "," if "," in bare else max(",;\t", key=bare.count)


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            size, metadata, unpacked = path.stat().st_size, file.metadata, 0
            if twice := [name for name, count in Counter(file.schema_arrow.names).items() if count > 1]:
                raise _unreadable(path, f"it has two columns {twice[0]!r}")
            if metadata.num_rows > MAX_ROWS_PER_BYTE * size:
                raise _unreadable(path, f"its {size:,} bytes claim to hold {metadata.num_rows:,} rows")
            for group in map(metadata.row_group, range(metadata.num_row_groups)):
                if group.total_byte_size > MAX_ROW * group.num_rows:  # on average: known before anything is unpacked
                    raise _too_long(f"a row of {path}")
            for batch in file.iter_batches(BATCH):
                unpacked += batch.nbytes
                if unpacked > MAX_UNPACKED:
                    raise _unreadable(path, f"it unpacks to more than {MAX_UNPACKED >> 30} GiB")
                if batch.nbytes > MAX_ROW and any(batch.slice(i, 1).nbytes > MAX_ROW for i in range(len(batch))):
                    raise _too_long(f"a row of {path}")
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _unreadable(path, f"it is not a complete parquet file: {reason}") from error


def _parse(where: str, content: bytes) -> Any:
    try:
        return json.loads(content, object_pairs_hook=unique_keys)
    except UnicodeDecodeError as error:
        raise _not_utf8(where, error) from error
    except (ValueError, RecursionError) as error:
        is_broken = isinstance(error, json.JSONDecodeError | RecursionError)
        what = f"{where} is not JSON" if is_broken else f"cannot read {where}"
        raise GspoError(what, str(error), "repair it, or write the data anew") from error


def _not_utf8(where: str, error: UnicodeDecodeError) -> GspoError:
    wide = error.encoding.upper()[:6]
    if error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        wide = "UTF-32" if error.object.startswith(codecs.BOM_UTF32_LE) else "UTF-16"
    if wide in ("UTF-16", "UTF-32"):  # json recognises these by their zeros
        why, encoding = f"it is {wide}, as some programs of Windows write text", wide
    else:
        byte, encoding = error.object[error.start], "LATIN1"
        why = f"byte {error.start + 1} of it is 0x{byte:02x}, as Latin-1 and Windows-1252 write letters with accents"
    return GspoError(f"{where} is not UTF-8", why, f"convert the file: iconv -f {encoding} -t UTF-8 FILE > NEW")


def _unreadable(path: Path, why: str) -> GspoError:
    return GspoError(f"cannot read {path}", why, "repair the file, or give another one")


def _too_long(what: str) -> GspoError:
    return GspoError(f"{what} is too long", f"a row has at most {MAX_ROW >> 20} MiB", "check what the file holds")


def _no_rows(source: str | Path) -> GspoError:
    return GspoError(f"{source} holds no rows", "there is nothing to read", "give a file with rows")


def is_unicode(*values: object) -> bool:
    """Whether all values can be written as UTF-8, which half of a surrogate pair (`\\ud800` in JSON) cannot."""
    return not any("\ud800" <= character <= "\udfff" for value in values for character in str(value))


def require_columns(where: str, row: Row, needed: Iterable[str], hint: str, nulls: bool = False) -> None:
    """Errors: GspoError for the first of these columns that a row lacks, or without `nulls` has no value in."""
    for column in needed:
        if column not in row or (row[column] is None and not nulls):
            why = f"the columns are {', '.join(row)}; needed are {', '.join(needed)}"
            raise GspoError(f"{where} has no {column!r}", why, hint)


def require_text(where: str, column: str, value: Any, hint: str = "write it as text, or remove the row") -> str:
    """The value of a column, which must be text. Errors: GspoError for any other, and for half of a surrogate pair."""
    if not isinstance(value, str):
        kind = type(value).__name__ + (" of messages or parts" if isinstance(value, list) else "")
        raise GspoError(f"{where}: {column!r} is not text", f"it is of type {kind}", hint)
    if not is_unicode(value):
        why = "it holds half of a surrogate pair"
        raise GspoError(f"{where}: {column!r} is no text", why, "repair it, or remove the row")
    return value
