"""A run's log as a tidy frame: one row per value, of the requested metrics only."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from gspo_cli.report.runs.folders import StoredRun
from gspo_cli.report.runs.reader import Columns, LogReader, corrupt, lines_by_kind, read_fast, read_strict
from gspo_cli.stats.problems import Array

Wanted = Mapping[str, Collection[str]]
"""Kind of line -> metrics to read. A name that ends in `LAYERS` means all layers, `SCORES` all benchmark scores,
`PARTS` each of several rewards."""
LAYERS, SCORES, PARTS = "/layer_", "*/avg@", "reward/part/*"

Names = dict[str, list[str]]
"""Kind of line -> the metrics that a block has of those wanted."""
MetricRows = tuple[str, tuple[Array, ...]]
"""A metric's name and its columns: `seq`, `step`, `kind` (a code), `mini_batch`, `value`, `count`."""


@dataclass(frozen=True, slots=True)
class Log:
    """What was read of one run's `metrics.jsonl`."""

    run: StoredRun
    frame: pd.DataFrame
    """One row per value, in the order of the log: `seq`, `step`, `kind`, `mini_batch` (missing outside `update` lines),
    `metric`, `value`, `count` (the value's denominator, NaN where the line has none or it was not read). A null metric
    has no row; a non-finite one has its nan or inf."""
    num_bytes: int
    """Length of the whole lines read, in bytes."""
    sha256: str
    """Of these bytes."""
    torn_bytes: int
    """Length of an incomplete last line, which was left out."""

    def values(self, kind: str, metric: str) -> pd.DataFrame:
        """The rows of a metric in one kind of line."""
        return self.frame[(self.frame["metric"] == metric) & (self.frame["kind"] == kind)]


def load_log(run: StoredRun, wanted: Wanted, counts: bool = True) -> Log:
    """Reads the wanted metrics from a run's `metrics.jsonl`, with or (faster) without their counts.

    Errors: GspoError (exit code STORAGE) naming file and line of what is not strict JSON or not a log line.
    """
    reader = LogReader(run.folder / "metrics.jsonl")
    kinds = sorted(wanted)
    parts = [
        part
        for block in reader.blocks()
        for columns, names in _columns(reader, block, wanted, counts)
        for part in _metric_rows(columns, kinds, names)
    ]
    frame = _frame(kinds, parts)
    repeated = frame[frame.duplicated(["kind", "step", "mini_batch", "metric"])]
    if len(repeated):
        row = repeated.iloc[0]
        raise corrupt(str(reader.path), f"step {row['step']} has a second `{row['kind']}` line (seq {row['seq']})")
    reader.refuse_damaged()
    return Log(run, frame, reader.num_bytes, reader.sha256, reader.torn_bytes)


def load_perf(path: Path) -> pd.DataFrame:
    """A `perf.jsonl`, one row per line, the keys of the lines as columns.

    Errors: GspoError (exit code STORAGE) naming file and line of what is not strict JSON.
    """
    reader = LogReader(path)
    records = [record for block in reader.blocks() for record in reader.parse(block)]
    reader.refuse_damaged()
    return pd.DataFrame(records)


def _columns(reader: LogReader, block: bytes, wanted: Wanted, counts: bool) -> list[tuple[Columns, Names]]:
    """The current block as columns: kind by kind if the fast parser can be trusted with every kind, else in one piece
    by the strict one."""
    if (by_kind := lines_by_kind(block, wanted, counts)) is not None:
        parts = []
        for kind, lines in by_kind.items():
            names = _matching_names(wanted[kind], b"".join(lines))
            table = read_fast(lines, _schema(names))
            if table is None or table["seq"].null_count or table["step"].null_count:
                break
            parts.append((Columns(reader, table), {kind: names}))
        else:
            return parts
    columns = Columns(reader, read_strict(reader, block))
    logged = b"".join(b'"%b"' % name.encode("utf-8", "replace") for name in columns.keys("metrics"))
    return [(columns, {kind: _matching_names(keys, logged) for kind, keys in wanted.items()})]


def _matching_names(keys: Collection[str], text: bytes) -> list[str]:
    """The wanted names, general ones replaced by what occurs in the text; sorted."""
    general = {SCORES: rb"[A-Za-z0-9_.-]+/avg@[0-9]+", PARTS: rb"reward/part/[A-Za-z0-9_.-]+"}
    plain = {key for key in keys if key not in general and not key.endswith(LAYERS)}
    forms = [general.get(key) or rb"%b[0-9]+" % re.escape(key).encode() for key in keys if key not in plain]
    return sorted(plain.union(*({n.decode() for n in set(re.findall(rb'"(%b)"' % form, text))} for form in forms)))


def _schema(names: list[str]) -> pa.Schema:
    numbers, words = (pa.struct([(name, kind) for name in names]) for kind in (pa.float64(), pa.string()))
    whole = [(name, pa.int64()) for name in ("seq", "step", "mini_batch")]
    return pa.schema([*whole, ("kind", pa.string()), ("metrics", numbers), ("counts", numbers), ("nonfinite", words)])


def _metric_rows(columns: Columns, kinds: list[str], names: Names) -> Iterator[MetricRows]:
    """The values of every metric in one block."""
    seq, step, mini_batch = columns.integers("seq"), columns.integers("step"), columns.numbers("mini_batch")
    kind = columns.codes(kinds, "kind")
    for name in sorted({name for of_kind in names.values() for name in of_kind}):
        values, valid = columns.metric(name)
        codes = [code for code, kind_name in enumerate(kinds) if name in names.get(kind_name, ())]
        rows = np.flatnonzero(valid & np.isin(kind, codes))
        series = (seq, step, kind, mini_batch, values, columns.numbers("counts", name))
        yield name, tuple(column[rows] for column in series)


def _frame(kinds: list[str], parts: list[MetricRows]) -> pd.DataFrame:
    empty = (np.zeros(0, dtype=np.int64),) * 6
    seq, step, kind, mini_batch, value, count = (
        np.concatenate(column) for column in zip(empty, *(columns for _, columns in parts), strict=True)
    )
    names = sorted({name for name, _ in parts})
    codes = np.repeat([names.index(name) for name, _ in parts], [len(columns[0]) for _, columns in parts])
    frame = pd.DataFrame(
        {
            "seq": seq,
            "step": step,
            "kind": pd.Categorical.from_codes(kind.astype(np.int64), categories=pd.Index(kinds)),
            "mini_batch": pd.array(mini_batch, dtype="Int64"),
            "metric": pd.Categorical.from_codes(codes.astype(np.int64), categories=pd.Index(names, dtype=str)),
            "value": value.astype(np.float64),
            "count": count.astype(np.float64),
        }
    )
    return frame.sort_values("seq", kind="stable", ignore_index=True)
