"""Blocks of a log as columns, by Arrow: the fast way into `load.py`, several times as fast as Python's parser.

Arrow's parser is strict, with the exceptions that `_plain` looks for; a block that is not proven to be one strict
object a line goes to `jsonl.py`, whose verdict counts and whose error names the line.
"""

from __future__ import annotations

from operator import methodcaller
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from gspo_cli.report.jsonl import MAX_LINE, LogReader

NON_FINITE = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
"""How a log line writes what JSON has no number for."""

Array = np.ndarray[Any, Any]

_count_braces = methodcaller("count", b"{")


class Block:
    """Columns of a block of lines as numpy arrays, checked."""

    def __init__(self, reader: LogReader, lines: list[bytes]) -> None:
        self._reader = reader
        self._table = read_block(reader, lines).combine_chunks()

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


def read_block(reader: LogReader, lines: list[bytes]) -> pa.Table:
    """The lines as rows; objects are struct columns, an absent key is null.

    Errors: GspoError (exit code STORAGE) naming file and line.
    """
    table = _parse_fast(lines)
    if table is not None:
        return table
    records = reader.parse(lines)
    try:
        return pa.Table.from_struct_array(pa.chunked_array([pa.array(records)]))
    except pa.ArrowInvalid as error:
        raise reader.corrupt(0, f"here or in a later line a value changes its type: {error}") from error


def _parse_fast(lines: list[bytes]) -> pa.Table | None:
    block = b"".join(lines)
    if not lines or not _plain(lines, block):
        return None
    try:
        table = pa.json.read_json(pa.BufferReader(block), pa.json.ReadOptions(use_threads=False))
    except pa.ArrowInvalid:
        return None
    return table if table.num_rows == len(lines) else None


def _plain(lines: list[bytes], block: bytes) -> bool:
    """Whether Arrow's verdict on the block can be trusted.

    Arrow takes NaN and infinities, a byte order mark, two objects on one line and one on two; deep nesting kills the
    process. `}\\n{` cannot stand inside a JSON object, so as many of them as inner line ends, and as many rows as
    lines, prove one object a line.
    """
    return (
        block.isascii()
        # a single byte is found far faster than a word, and a log hardly ever has these
        and not any(first in block and word in block for first, word in ((b"N", b"NaN"), (b"I", b"Inf"), (b"[", b"[")))
        and block.count(b"}\n{") == len(lines) - 1
        and max(map(len, lines)) <= MAX_LINE
        and max(map(_count_braces, lines)) <= 8
    )
