"""A run's log as a tidy frame: one row a value, with only the metrics that were asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from gspo_cli.report.blocks import read_block
from gspo_cli.report.folders import Run
from gspo_cli.report.jsonl import LogReader, corrupt

NON_FINITE = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
"""How a log line writes what JSON has no number for."""

Array = np.ndarray[Any, Any]

Wanted = Mapping[str, Collection[str]]
"""The metrics to read: kind of line -> names."""


@dataclass(frozen=True, slots=True)
class Log:
    """What was read of one run's `metrics.jsonl`."""

    run: Run
    frame: pd.DataFrame
    """One row a value, in the order of the log: `seq`, `step`, `kind`, `mini_batch` (missing outside `update` lines),
    `metric`, `value`, `count` (the value's denominator, NaN where the line has none). A null metric has no row; a
    non-finite one has its nan or inf."""
    num_bytes: int
    """Length of the whole lines read, in bytes."""
    sha256: str
    """Of these bytes."""
    torn_bytes: int
    """Length of a torn last line, which was left out."""


def load_log(run: Run, wanted: Wanted) -> Log:
    """Reads the wanted metrics from a run's `metrics.jsonl`.

    Errors: GspoError (exit code STORAGE) naming file and line of what is not strict JSON or not a log line.
    """
    reader = LogReader(run.folder / "metrics.jsonl")
    parts = [_collect(_Block(reader, lines), wanted) for lines in reader.blocks()]
    frame = pd.concat(parts or [_frame(wanted, [])], ignore_index=True)
    twice = frame[frame.duplicated(["kind", "step", "mini_batch", "metric"])]
    if len(twice):
        row = twice.iloc[0]
        raise corrupt(str(reader.path), f"step {row['step']} has a second `{row['kind']}` line (seq {row['seq']})")
    return Log(run, frame, reader.num_bytes, reader.sha256, reader.torn_bytes)


def load_perf(path: Path) -> pd.DataFrame:
    """A `perf.jsonl`, one row a line, the keys of the lines as columns.

    Errors: GspoError (exit code STORAGE) naming file and line of what is not strict JSON.
    """
    reader = LogReader(path)
    return pd.DataFrame([record for lines in reader.blocks() for record in reader.parse(lines)])


class _Block:
    """Columns of a block of lines as numpy arrays, checked."""

    def __init__(self, reader: LogReader, lines: list[bytes]) -> None:
        self._reader = reader
        self._table = read_block(reader, lines)

    def column(self, *path: str) -> pa.Array:
        """A column, or a key of a struct column; nulls where it is absent."""
        name, *keys = path
        if name not in self._table.column_names:
            return pa.nulls(self._table.num_rows)
        array = self._table[name].combine_chunks()
        for key in keys:
            if not pa.types.is_struct(array.type):
                raise self._reader.corrupt(0, f"`{name}` of this or a later line is not an object")
            if array.type.get_field_index(key) < 0:
                return pa.nulls(len(array))
            array = pc.struct_field(array, key)
        return array

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


def _collect(block: _Block, wanted: Wanted) -> pd.DataFrame:
    """The rows of one block."""
    kinds = sorted(wanted)
    seq, step, mini_batch = block.integers("seq"), block.integers("step"), block.numbers("mini_batch")
    kind = block.codes(kinds, "kind")
    parts = []
    for code, name in enumerate(_names(wanted)):
        values, valid = block.values(name)
        here = [index for index, key in enumerate(kinds) if name in wanted[key]]
        rows = np.flatnonzero(valid & np.isin(kind, here))
        columns = (seq, step, kind, mini_batch, np.full(len(seq), code), values, block.numbers("counts", name))
        parts.append(tuple(column[rows] for column in columns))
    return _frame(wanted, parts)


def _names(wanted: Wanted) -> list[str]:
    return sorted({name for names in wanted.values() for name in names})


def _frame(wanted: Wanted, parts: Sequence[tuple[Array, ...]]) -> pd.DataFrame:
    empty = (np.zeros(0, dtype=np.int64),) * 7
    seq, step, kind, mini_batch, metric, value, count = (np.concatenate(c) for c in zip(empty, *parts, strict=True))
    frame = pd.DataFrame(
        {
            "seq": seq,
            "step": step,
            "kind": pd.Categorical.from_codes(kind.astype(np.int64), categories=pd.Index(sorted(wanted))),
            "mini_batch": pd.array(mini_batch, dtype="Int64"),
            "metric": pd.Categorical.from_codes(metric.astype(np.int64), categories=pd.Index(_names(wanted))),
            "value": value.astype(np.float64),
            "count": count.astype(np.float64),
        }
    )
    return frame.sort_values("seq", kind="stable", ignore_index=True)
