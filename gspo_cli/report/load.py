"""A run's log as a tidy frame: one row a value, with only the metrics that were asked for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from gspo_cli.report.blocks import Block, read_fast, read_strict
from gspo_cli.report.folders import Run
from gspo_cli.report.jsonl import LogReader, corrupt
from gspo_cli.report.lines import Array, Lines

Wanted = Mapping[str, Collection[str]]
"""The metrics to read: kind of line -> names. One that ends in `/layer_` stands for those of all layers, `SCORES` for
all benchmark scores."""
LAYERS, SCORES = "/layer_", "*/avg@"

Part = tuple[str, tuple[Array, ...]]
"""A metric's name and its columns: `seq`, `step`, `kind` (a code), `mini_batch`, `value`, `count`."""


@dataclass(frozen=True, slots=True)
class Log:
    """What was read of one run's `metrics.jsonl`."""

    run: Run
    frame: pd.DataFrame
    """One row a value, in the order of the log: `seq`, `step`, `kind`, `mini_batch` (missing outside `update` lines),
    `metric`, `value`, `count` (the value's denominator, NaN where the line has none or it was not read). A null metric
    has no row; a non-finite one has its nan or inf."""
    num_bytes: int
    """Length of the whole lines read, in bytes."""
    sha256: str
    """Of these bytes."""
    torn_bytes: int
    """Length of a torn last line, which was left out."""


def load_log(run: Run, wanted: Wanted, counts: bool = True) -> Log:
    """Reads the wanted metrics from a run's `metrics.jsonl`, with or (sooner) without their counts.

    Errors: GspoError (exit code STORAGE) naming file and line of what is not strict JSON or not a log line.
    """
    reader = LogReader(run.folder / "metrics.jsonl")
    kinds = sorted(wanted)
    parts = [
        part
        for text in reader.blocks()
        for block, asked in _blocks(reader, text, wanted, counts)
        for part in _collect(block, kinds, asked)
    ]
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
    return pd.DataFrame([record for block in reader.blocks() for record in reader.parse(block)])


Names = dict[str, list[str]]
"""Kind of line -> the metrics that it is asked for."""


def _blocks(reader: LogReader, text: bytes, wanted: Wanted, counts: bool) -> list[tuple[Block, Names]]:
    """The block given out last as columns: kind by kind by the fast parser, or, where its verdict on one of them cannot
    be trusted, in one piece by the strict one."""
    lines, found = Lines(text), []
    for kind in wanted:
        if own := lines.of(kind, counts):
            names = _names(wanted[kind], own)
            table = read_fast(own, _schema(names))
            if table is None or table["seq"].null_count or table["step"].null_count:
                break
            found.append((Block(reader, table), {kind: names}))
    else:
        if lines.own_form:
            return found
    block = Block(reader, read_strict(reader, text))
    logged = b"".join(b'"%b"' % name.encode("utf-8", "replace") for name in block.keys("metrics"))
    return [(block, {kind: _names(keys, logged) for kind, keys in wanted.items()})]


def _names(keys: Collection[str], text: bytes) -> list[str]:
    """The names in a text that the wanted ones stand for, sorted."""
    plain = {key for key in keys if key != SCORES and not key.endswith(LAYERS)}
    forms = [rb"[A-Za-z0-9_.-]+/avg@[0-9]+" if key == SCORES else rb"%b[0-9]+" % re.escape(key).encode()
             for key in keys if key not in plain]  # fmt: skip
    return sorted(plain.union(*({n.decode() for n in set(re.findall(rb'"(%b)"' % form, text))} for form in forms)))


def _collect(block: Block, kinds: list[str], asked: Names) -> Iterator[Part]:
    """What one block has of every metric."""
    seq, step, mini_batch = block.integers("seq"), block.integers("step"), block.numbers("mini_batch")
    kind = block.codes(kinds, "kind")
    for name in sorted({name for names in asked.values() for name in names}):
        values, valid = block.values(name)
        here = [index for index, kind_name in enumerate(kinds) if name in asked.get(kind_name, ())]
        rows = np.flatnonzero(valid & np.isin(kind, here))
        columns = (seq, step, kind, mini_batch, values, block.numbers("counts", name))
        yield name, tuple(column[rows] for column in columns)


def _schema(names: list[str]) -> pa.Schema:
    """What is read of a line."""
    numbers, words = (pa.struct([(name, kind) for name in names]) for kind in (pa.float64(), pa.string()))
    whole = [(name, pa.int64()) for name in ("seq", "step", "mini_batch")]
    return pa.schema([*whole, ("kind", pa.string()), ("metrics", numbers), ("counts", numbers), ("nonfinite", words)])


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
