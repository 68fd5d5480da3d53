"""Blocks of a log as columns, by Arrow: the fast way into `load.py`, many times as fast as Python's parser.

Arrow's parser is strict in what it is asked for, with the exceptions that `_plain` looks for; a block that is not
proven to be one object a line goes to `jsonl.py`, whose verdict counts and whose error names the line. What nobody
asked for is not judged here: `gspo runs verify` reads every byte.

N = lines, X = bytes
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from gspo_cli.report.jsonl import MAX_LINE, LogReader
from gspo_cli.report.lines import CLOSE, OPEN, Array, line_ends

NON_FINITE = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
"""How a log line writes what JSON has no number for."""


class Block:
    """Columns of a block of lines as numpy arrays, checked."""

    def __init__(self, reader: LogReader, table: pa.Table) -> None:
        self._reader = reader
        self._table = table.combine_chunks()

    def column(self, *path: str) -> pa.Array:
        """A column, or a key of a struct column; nulls where it is absent."""
        name, *keys = path
        if name not in self._table.column_names:
            return pa.nulls(self._table.num_rows)
        array = self._table[name].chunk(0)
        for key in keys:
            if not pa.types.is_struct(array.type):
                raise self._reader.corrupt(0, f"`{name}` of this or a later line is not an object")
            if array.type.get_field_index(key) < 0:
                return pa.nulls(len(array))
            array = pc.struct_field(array, key)
        return array

    def keys(self, name: str) -> list[str]:
        """The keys of a struct column."""
        kind = self.column(name).type
        return [kind.field(index).name for index in range(kind.num_fields)] if pa.types.is_struct(kind) else []

    def numbers(self, *path: str) -> Array:
        """Float64; NaN where absent or null."""
        array = self.column(*path)
        kind = array.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
            raise self._reader.corrupt(0, f"`{path[-1]}` of this or a later line is not a number")
        return np.asarray(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))

    def integers(self, name: str) -> Array:
        """Int64; every line must have it."""
        array = self.column(name)
        if array.null_count:
            raise self._reader.corrupt(array.is_null().index(True).as_py(), f"it has no `{name}`")
        if not pa.types.is_integer(array.type):
            raise self._reader.corrupt(0, f"`{name}` of this or a later line is not a whole number")
        return np.asarray(array.cast(pa.int64()).to_numpy(zero_copy_only=False))

    def codes(self, words: list[str], *path: str) -> Array:
        """The position of each text in `words`; -1 for absent, null or any other text."""
        array = self.column(*path)
        if not (pa.types.is_string(array.type) or pa.types.is_null(array.type)):
            raise self._reader.corrupt(0, f"`{path[-1]}` of this or a later line is not a text")
        found = pc.index_in(array.cast(pa.string()), value_set=pa.array(words, pa.string()))
        return np.asarray(found.fill_null(-1).cast(pa.int64()).to_numpy(zero_copy_only=False))

    def values(self, name: str) -> tuple[Array, Array]:
        """A metric, with nan and infinities where the lines record them, and where it has a value at all."""
        values = self.numbers("metrics", name)
        words = self.codes(list(NON_FINITE), "nonfinite", name)
        missing = np.isnan(values)
        return np.where(missing, np.array([*NON_FINITE.values(), np.nan])[words], values), ~missing | (words >= 0)


def read_fast(block: bytes, schema: pa.Schema) -> pa.Table | None:
    """The columns of the schema by Arrow, one row a line; None where its verdict cannot be trusted."""
    num_lines = _plain(block) if block else 0
    if not num_lines:
        return None
    read = pa.json.ReadOptions(use_threads=False, block_size=len(block))
    parse = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        table = pa.json.read_json(pa.BufferReader(block), read, parse)
    except pa.ArrowInvalid:
        return None
    return table if table.num_rows == num_lines else None


def read_strict(reader: LogReader, block: bytes) -> pa.Table:
    """The block given out last as rows; objects are struct columns, an absent key is null.

    Errors: GspoError (exit code STORAGE) naming file and line.
    """
    records = reader.parse(block)
    try:
        return pa.Table.from_struct_array(pa.chunked_array([pa.array(records)]))
    except pa.ArrowInvalid as error:
        raise reader.corrupt(0, f"here or in a later line a value changes its type: {error}") from error


def _plain(block: bytes) -> int:
    """The number of lines if Arrow's verdict on the block can be trusted, else 0.

    Arrow takes NaN and infinities, a byte order mark, two objects on one line and one on two; deep nesting kills the
    process. `}\\n{` cannot stand inside a JSON object, so lines that begin and end with braces, and as many rows as
    lines, prove one object a line.
    """
    # a single byte is found far faster than a word, and a log hardly ever has these
    words = ((b"N", b"NaN"), (b"I", b"Inf"), (b"[", b"["))
    if not block.isascii() or any(first in block and word in block for first, word in words):
        return 0
    bytes_X = np.frombuffer(block, np.uint8)
    starts_N, ends_N = line_ends(bytes_X)
    braces_N = np.diff(np.searchsorted(np.flatnonzero(bytes_X == OPEN), np.append(0, ends_N)))
    plain = (
        (bytes_X[starts_N] == OPEN).all()
        and (bytes_X[ends_N - 2] == CLOSE).all()
        and (ends_N - starts_N).max() <= MAX_LINE
        and braces_N.max() <= 8
    )
    return len(ends_N) if plain else 0
