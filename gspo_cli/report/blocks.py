"""Blocks of a log as Arrow tables: the fast way into `load.py`, several times as fast as Python's parser.

Arrow's parser is strict, with the exceptions that `_plain` looks for; a block that is not proven to be one strict
object a line goes to `jsonl.py`, whose verdict counts and whose error names the line.
"""

from __future__ import annotations

from operator import methodcaller

import pyarrow as pa
import pyarrow.json

from gspo_cli.report.jsonl import MAX_LINE, LogReader

_count_braces = methodcaller("count", b"{")


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
