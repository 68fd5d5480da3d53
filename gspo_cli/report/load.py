"""A run's log as a tidy frame: one row a value, with only the metrics that were asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from gspo_cli.report.blocks import Array, Block
from gspo_cli.report.folders import Run
from gspo_cli.report.jsonl import LogReader, corrupt

Wanted = Mapping[str, Collection[str]]
"""The metrics to read: kind of line -> names; one that ends in `/layer_` stands for those of all layers."""
LAYERS = "/layer_"

Part = tuple[str, tuple[Array, ...]]
"""A metric's name and its columns: `seq`, `step`, `kind` (a code), `mini_batch`, `value`, `count`."""


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
    kinds = sorted(wanted)
    parts = [part for lines in reader.blocks() for part in _collect(Block(reader, lines), kinds, wanted)]
    frame = _frame(kinds, parts)
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


def _collect(block: Block, kinds: list[str], wanted: Wanted) -> Iterator[Part]:
    """What one block has of every metric."""
    seq, step, mini_batch = block.integers("seq"), block.integers("step"), block.numbers("mini_batch")
    kind = block.codes(kinds, "kind")
    for name, key in _names(block, wanted):
        values, valid = block.values(name)
        here = [index for index, kind_name in enumerate(kinds) if key in wanted[kind_name]]
        rows = np.flatnonzero(valid & np.isin(kind, here))
        columns = (seq, step, kind, mini_batch, values, block.numbers("counts", name))
        yield name, tuple(column[rows] for column in columns)


def _names(block: Block, wanted: Wanted) -> list[tuple[str, str]]:
    """(a metric's name, the wanted name that it answers), by name."""
    logged = {*block.keys("metrics"), *block.keys("nonfinite")}
    keys = {key for names in wanted.values() for key in names}
    layers = [(name, key) for key in keys if key.endswith(LAYERS) for name in logged if _is_layer(name, key)]
    return sorted([*layers, *((key, key) for key in keys if not key.endswith(LAYERS))])


def _is_layer(name: str, key: str) -> bool:
    return name.startswith(key) and name.removeprefix(key).isdecimal()


def _frame(kinds: list[str], parts: Sequence[Part]) -> pd.DataFrame:
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
