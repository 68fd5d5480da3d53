"""A run's log as a tidy frame: one row per value, of the requested metrics only."""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from gspo_cli.report.runs.folders import StoredRun
from gspo_cli.report.runs.reader import LogReader, corrupt, read_fast
from gspo_cli.runlog.log import MAX_STEP
from gspo_cli.stats.problems import Array

Wanted = Mapping[str, Collection[str]]
"""Kind of line -> metrics to read. A name that ends in `LAYERS` means all layers, `SCORES` all benchmark scores,
`PARTS` each of several rewards."""
LAYERS, SCORES, PARTS = "/layer_", "*/avg@", "reward/part/*"

MOST = 1e90
"""Cubes of larger numbers overflow."""
NON_FINITE = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
"""How a log line spells the numbers that JSON lacks."""

Part = tuple[str, str, Sequence[Array]]
"""Kind of line, metric, and its columns: `seq`, `step`, `mini_batch`, `value`, `count`."""


@dataclass(frozen=True, slots=True)
class Log:
    """What was read of one run's `metrics.jsonl`."""

    run: StoredRun
    frame: pd.DataFrame
    """One row per value, in the order of the log: `seq`, `step`, `kind`, `mini_batch` (missing outside `update` lines),
    `metric`, `value`, `count` (the value's denominator, NaN where the line has none). A null metric
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


def load_log(run: StoredRun, wanted: Wanted) -> Log:
    """Reads the wanted metrics from a run's `metrics.jsonl`.

    Errors: GspoError (exit code STORAGE) naming file and line of what is not strict JSON or not a log line.
    """
    reader = LogReader(run.folder / "metrics.jsonl")
    parts: list[Part] = []
    for block in reader.blocks():
        fast = _fast_parts(block, wanted)
        parts += _strict_parts(reader, reader.parse(block), wanted) if fast is None else fast
    frame = _frame(sorted(wanted), parts)
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


def _fast_parts(block: bytes, wanted: Wanted) -> list[Part] | None:
    """The metrics of a block by the fast parser; None where the strict one must look, also for the line to blame."""
    names = {kind: _matching_names(keys, block) for kind, keys in wanted.items()}
    table = read_fast(block, _schema(sorted(set(chain.from_iterable(names.values())))))
    if table is None or table["kind"].null_count:
        return None
    seq, step, mini_batch = (_numbers(table[name]) for name in ("seq", "step", "mini_batch"))
    if not all(((column >= 0) & (column <= MAX_STEP)).all() for column in (seq, step)):
        return None
    parts: list[Part] = []
    for kind, of_kind in names.items():
        is_kind = pc.equal(table["kind"], kind).to_numpy()
        for name in of_kind:
            value, count = (_numbers(pc.struct_field(table[group], name)) for group in ("metrics", "counts"))
            words = pc.index_in(pc.struct_field(table["nonfinite"], name), value_set=pa.array(list(NON_FINITE)))
            word = words.fill_null(-1).to_numpy()
            rows = np.flatnonzero(is_kind & (~np.isnan(value) | (word >= 0)))
            value = np.where(np.isnan(value), np.array([*NON_FINITE.values(), np.nan])[word], value)
            parts.append((kind, name, [column[rows] for column in (seq, step, mini_batch, value, count)]))
    return parts


def _numbers(column: pa.ChunkedArray) -> Array:
    """Float64; NaN where null."""
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy())


def _strict_parts(reader: LogReader, records: list[dict[str, Any]], wanted: Wanted) -> list[Part]:
    """Errors: GspoError (exit code STORAGE) naming file and line of what is not a log line."""
    tables = (metrics for record in records if isinstance(metrics := record.get("metrics"), dict))
    logged = b"".join(b'"%b"' % name.encode("utf-8", "replace") for name in set(chain.from_iterable(tables)))
    names = {kind: _matching_names(keys, logged) for kind, keys in wanted.items()}
    rows: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    for index, record in enumerate(records):
        try:
            for name, row in _values(record, names):
                rows[record["kind"], name].append(row)
        except ValueError as error:
            raise reader.corrupt(index, error) from error
    return [(kind, name, list(np.array(found, np.float64).T)) for (kind, name), found in rows.items()]


def _values(record: dict[str, Any], names: dict[str, list[str]]) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Metric and row of each value. Errors: ValueError with what is wrong with the line."""
    for key in ("seq", "step"):
        if key not in record or record[key] is None:
            raise ValueError(f"it has no `{key}`")
        if type(record[key]) is not int or not 0 <= record[key] <= MAX_STEP:
            raise ValueError(f"`{key}` is {record[key]!r:.80}, not a whole number up to {MAX_STEP}")
    if not isinstance(record.get("kind"), str):
        raise ValueError("`kind` is not a text")
    for group in ("metrics", "counts", "nonfinite"):
        if not isinstance(record.get(group) or {}, dict):
            raise ValueError(f"`{group}` is not an object")
    values, counts, nonfinite = (record.get(group) or {} for group in ("metrics", "counts", "nonfinite"))
    place = tuple(_number(record, key) for key in ("seq", "step", "mini_batch"))
    for name in names.get(record["kind"], ()):
        value, count = _number(values, name), _number(counts, name)
        if not math.isnan(value) or nonfinite.get(name) in NON_FINITE:
            yield name, (*place, NON_FINITE[nonfinite[name]] if math.isnan(value) else value, count)


def _number(table: dict[str, Any], key: str) -> float:
    """NaN where absent or null. Errors: ValueError for anything but a number."""
    value = table.get(key)
    if value is not None and type(value) not in (int, float):
        raise ValueError(f"`{key}` is not a number")
    return math.nan if value is None else float(value)


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


def _frame(kinds: list[str], parts: list[Part]) -> pd.DataFrame:
    empty, sizes = (np.zeros(0),) * 5, [len(columns[0]) for *_, columns in parts]
    seq, step, mini_batch, value, count = (
        np.concatenate(column) for column in zip(empty, *(columns for *_, columns in parts), strict=True)
    )
    names = sorted({name for _, name, _ in parts})
    kind_codes, name_codes = (
        np.repeat(np.array(codes, np.int64), sizes)
        for codes in ([kinds.index(kind) for kind, *_ in parts], [names.index(name) for _, name, _ in parts])
    )
    frame = pd.DataFrame(
        {
            "seq": seq.astype(np.int64),
            "step": step.astype(np.int64),
            "kind": pd.Categorical.from_codes(kind_codes, categories=pd.Index(kinds)),
            "mini_batch": pd.array(mini_batch, dtype="Int64"),
            "metric": pd.Categorical.from_codes(name_codes, categories=pd.Index(names, dtype=str)),
            "value": np.where(np.abs(value) > MOST, np.copysign(np.inf, value), value),
            "count": count,
        }
    )
    return frame.sort_values("seq", kind="stable", ignore_index=True)
