"""Read a log in blocks of whole lines: as columns by Arrow where the form of the lines is safe, else as strict JSON."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.runlog.checksums import refuse_damaged
from gspo_cli.runlog.fs import require_regular
from gspo_cli.runlog.log import MAX_LINE
from gspo_cli.runlog.strict_json import parse_object

BLOCK = 1 << 24
"""Bytes that are read, hashed and parsed at a time."""


def corrupt(where: str, why: object) -> GspoError:
    """The error for a file that is not what was written."""
    return GspoError(
        f"{where} is corrupt",
        str(why),
        "restore the file from a copy, or move its run folder out of the study",
        ExitCode.STORAGE,
    )


class LogReader:
    """Reads a log's whole lines once, block by block, and keeps their number of bytes and hash."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_bytes = 0
        """Length of all whole lines so far."""
        self.torn_bytes = 0
        """Length of an incomplete last line; 0 = none."""
        self._hash = hashlib.sha256()
        self._begin = 0

    @property
    def sha256(self) -> str:
        """Hex digest of the first `num_bytes` bytes."""
        return self._hash.hexdigest()

    def corrupt(self, index: int, why: object) -> GspoError:
        """The error for line `index` (0-based) of the current block."""
        with self.path.open("rb") as file:
            before = file.read(self._begin).count(b"\n")
        return corrupt(f"{self.path}, line {before + index + 1},", why)

    def blocks(self) -> Iterator[bytes]:
        """Blocks of whole lines."""
        require_regular(self.path)
        with self.path.open("rb") as file:
            while block := file.read(BLOCK):
                if not block.endswith(b"\n"):
                    block += file.readline(MAX_LINE)
                    if len(block) >= BLOCK + MAX_LINE and not block.endswith(b"\n"):
                        raise corrupt(str(self.path), f"a line is longer than {MAX_LINE} bytes")
                whole = block.rfind(b"\n") + 1
                self.torn_bytes = len(block) - whole
                block = block[:whole]
                self._hash.update(block)
                self._begin, self.num_bytes = self.num_bytes, self.num_bytes + whole
                if block:
                    yield block

    def refuse_damaged(self) -> None:
        """After the last block: check the log against its run's seal. Errors: GspoError (exit code STORAGE)."""
        refuse_damaged(self.path, self.sha256)

    def parse(self, block: bytes) -> list[dict[str, Any]]:
        """The current block as objects. Errors: GspoError (exit code STORAGE) naming file and line."""
        records = []
        for index, line in enumerate(block[:-1].split(b"\n")):
            try:
                if len(line) >= MAX_LINE:
                    raise ValueError(f"the line is longer than {MAX_LINE} bytes")
                records.append(parse_object(line.decode()))
            except ValueError as error:
                raise self.corrupt(index, error) from error
        return records


def read_fast(block: bytes, schema: pa.Schema) -> pa.Table | None:
    """The columns of the schema, parsed by Arrow, one row a line; None where Arrow is too lenient to be trusted.

    Arrow accepts NaN and infinities, a byte order mark, two objects on one line and one on two; deep nesting kills the
    process. `}\\n{` cannot occur inside a JSON object, so if all lines begin and end with braces, and there are as many
    rows as lines, each line holds exactly one object.
    """
    lines = block[:-1].split(b"\n")
    # a single byte is found far faster than a word, and a log hardly ever has these
    words = ((b"N", b"NaN"), (b"I", b"Inf"), (b"[", b"["))
    if not block.isascii() or any(first in block and word in block for first, word in words):
        return None
    if not all(
        line.startswith(b"{") and line.endswith(b"}") and len(line) < MAX_LINE and line.count(b"{") <= 8
        for line in lines
    ):
        return None
    read = pa.json.ReadOptions(use_threads=False, block_size=len(block))
    parse = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        table = pa.json.read_json(pa.BufferReader(block), read, parse)
    except pa.ArrowInvalid:
        return None
    return table if table.num_rows == len(lines) else None
