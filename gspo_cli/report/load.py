"""A run's log as a tidy frame: one row a value, with only the metrics that were asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from gspo_cli.errors import GspoError
from gspo_cli.report.blocks import read_block
from gspo_cli.report.folders import Run
from gspo_cli.report.jsonl import LogReader

NON_FINITE = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
COLUMNS = ("seq", "step", "kind", "mini_batch", "metric", "value", "count")


@dataclass(frozen=True, slots=True)
class Log:
    """What was read of one run's `metrics.jsonl`."""

    run: Run
    frame: pd.DataFrame
    """One row a value, in the order of the log: `seq`, `step`, `kind`, `mini_batch` (missing outside `update` lines),
    `metric`, `value` (float64), `count` (denominator, NaN where the line has none). A null metric has no row; a
    non-finite one has its nan or inf."""
    num_bytes: int
    """Length of the whole lines read, in bytes."""
    sha256: str
    """Of these bytes."""
    torn_bytes: int
    """Length of a torn last line, which was left out."""


def load_log(run: Run, wanted: Mapping[str, Collection[str]]) -> Log:
    """Reads the metrics `wanted` = {kind of line: metric names} from a run's `metrics.jsonl`.

    Errors: GspoError (exit code STORAGE) naming file and line of what is not strict JSON or not a log line.
    """
    reader = LogReader(run.folder / "metrics.jsonl")
    parts = [_collect(reader, read_block(reader, lines), wanted) for lines in reader.blocks() if lines]
    frame = pd.concat(parts, ignore_index=True) if parts else _frame([])
    kinds, names = sorted(wanted), sorted({name for group in wanted.values() for name in group})
    frame["kind"] = pd.Categorical(frame["kind"], categories=kinds)
    frame["metric"] = pd.Categorical(frame["metric"], categories=names)
    return Log(run, frame, reader.num_bytes, reader.sha256, reader.torn_bytes)


def load_perf(run: Run) -> pd.DataFrame:
    """A run's `perf.jsonl`, one row a line, its keys as columns; empty where there is no such file.

    Errors: as `load_log`.
    """
    path = run.folder / "perf.jsonl"
    if not path.exists():
        return pd.DataFrame()
    reader = LogReader(path)
    return pd.DataFrame([record for lines in reader.blocks() for record in reader.parse(lines)])


def _frame(parts: list[pd.DataFrame]) -> pd.DataFrame:
    empty = pd.DataFrame({name: pd.Series(dtype="float64") for name in COLUMNS})
    return pd.concat(parts, ignore_index=True).sort_values("seq", kind="stable") if parts else empty


def _collect(reader: LogReader, table: pa.Table, wanted: Mapping[str, Collection[str]]) -> pd.DataFrame:
    """The rows of one block."""
    seq, step = (_whole_numbers(reader, table, name) for name in ("seq", "step"))
    mini_batch = _numbers(reader, table, "mini_batch")
    if "kind" not in table.column_names or table["kind"].null_count:
        raise reader.corrupt(0, "a line of this block has no `kind`")
    kind = np.asarray(table["kind"].to_pylist(), dtype=object)
    parts = []
    for name in sorted({name for group in wanted.values() for name in group}):
        values = _with_non_finite(reader, table, name)
        counts = _numbers(reader, table, "counts", name)
        kinds = [k for k, names in wanted.items() if name in names]
        rows = np.flatnonzero(values.valid & np.isin(kind, kinds))
        parts.append(
            pd.DataFrame(
                {
                    "seq": seq[rows],
                    "step": step[rows],
                    "kind": kind[rows],
                    "mini_batch": pd.array(mini_batch.values[rows], dtype="Int64"),
                }
            )
        )
    return _frame(parts)
