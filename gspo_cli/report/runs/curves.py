"""A run's curves against steps, generated tokens and training seconds. X = steps with a finite value."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from gspo_cli.report.runs.folders import StoredRun
from gspo_cli.report.runs.log import Log, Wanted, load_log
from gspo_cli.report.runs.metric_spec import REWARD, Axis
from gspo_cli.report.runs.reader import LogReader, corrupt, read_fast
from gspo_cli.runlog.log import MAX_STEP
from gspo_cli.stats.problems import Array

TOKENS, QUERIES = "compute/gen_tokens", "compute/queries"
TRAINING = ("rollout_s", "prepare_s", "old_policy_s", "update_s", "sync_s")
"""The phases of a rollout batch that count as training; probing, evaluating and saving do not."""
TIMES = pa.schema([("step", pa.int64()), *((name, pa.float64()) for name in TRAINING)])
"""What is read of a line of `perf.jsonl`."""
SPREAD, GROUP_SPREAD = "reward/std", "reward/group_std"
ALWAYS = {"rollout": {REWARD, SPREAD, GROUP_SPREAD, TOKENS, QUERIES}}
"""Read of every log."""


@dataclass(frozen=True, slots=True)
class RunCurves:
    """The curves of one run."""

    values: dict[str, pd.Series[float]]
    """Metric -> finite values by step."""
    counts: dict[str, pd.Series[float]]
    """Metric -> the denominators of these values; NaN where the log has none."""
    seconds: pd.Series[float]
    """Training seconds up to the end of each step; empty where the times were not recorded."""
    non_finite: frozenset[str]
    """Metrics with a value that is not finite, which the curves leave out."""
    first_step: int
    num_steps: int
    """The last step that has a line."""
    num_bytes: int
    """Length of the whole lines of `metrics.jsonl`."""
    sha256: str
    """Of these."""
    torn_bytes: int

    def xy(self, metric: str, axis: Axis) -> tuple[Array, Array] | None:
        """A metric against an axis, both [X]; None if the run has no value of it or nothing on that axis.

        Evaluations before the first update are at 0.
        """
        values = self.values.get(metric)
        if values is None or not len(values):
            return None
        x = self.positions(values.index, axis)
        known = np.isfinite(x)
        return (x[known], values.to_numpy(np.float64)[known]) if known.any() else None

    def positions(self, steps: pd.Index[int], axis: Axis) -> Array:
        """Where the ends of these steps stand on an axis; NaN where that is not recorded."""
        if axis == "steps":
            return steps.to_numpy(np.float64)
        return np.where(steps == 0, 0.0, self._along(axis).reindex(steps).to_numpy(np.float64))

    def total(self, axis: Axis) -> float | None:
        """All steps made, tokens sampled or seconds trained."""
        if axis == "steps":
            return float(self.num_steps)
        along = self._along(axis)
        return float(along.iloc[-1]) if len(along) else None

    def _along(self, axis: Axis) -> pd.Series[float]:
        return self.values[TOKENS] if axis == "tokens" else self.seconds


def load_curves(runs: Sequence[StoredRun], wanted: Wanted) -> list[RunCurves]:
    """Reads the logs of runs: the wanted metrics, and what is always read.

    Errors: GspoError (exit code STORAGE) naming file and line of what is corrupt.
    """
    names = {kind: set(ALWAYS.get(kind, ())) | set(wanted.get(kind, ())) for kind in {*ALWAYS, *wanted}}
    return [_curves(load_log(run, names), names) for run in runs]


def _curves(log: Log, names: Mapping[str, Collection[str]]) -> RunCurves:
    step, value, count = (log.frame[name].to_numpy() for name in ("step", "value", "count"))
    finite, values, counts = np.isfinite(value), {}, {}
    for kind, of_kind in names.items():
        is_kind = finite & (log.frame["kind"] == kind).to_numpy()
        for name in of_kind:
            rows = np.flatnonzero(is_kind & (log.frame["metric"] == name).to_numpy())
            rows = rows[np.argsort(step[rows], kind="stable")]
            steps = pd.Index(step[rows], name="step")
            values[name], counts[name] = pd.Series(value[rows], steps), pd.Series(count[rows], steps)
    seconds = training_seconds(log.run.folder / "perf.jsonl")
    bad = frozenset(log.frame["metric"][~finite])
    first, last = (int(end) for end in (step.min(initial=MAX_STEP), step.max(initial=0)))
    return RunCurves(values, counts, seconds, bad, first, last, log.num_bytes, log.sha256, log.torn_bytes)


def training_seconds(path: Path) -> pd.Series[float]:
    """Cumulative seconds of training by step, from a `perf.jsonl`; a step repeated by a later attempt counts once.

    Errors: GspoError (exit code STORAGE) naming file and line of what is not strict JSON.
    """
    if not path.is_file():
        return pd.Series(dtype=np.float64)
    reader, tables = LogReader(path), [TIMES.empty_table()]
    for block in reader.blocks():
        table = read_fast(block, TIMES)
        try:
            tables.append(pa.Table.from_pylist(reader.parse(block), TIMES) if table is None else table)
        except (ValueError, TypeError, OverflowError) as error:
            raise corrupt(str(path), f"a time or step is no number: {error}") from error
    reader.refuse_damaged()
    times = pa.concat_tables(tables)
    times = times.filter(times["step"].is_valid())
    parts = np.stack([times[name].to_numpy() for name in TRAINING], axis=1)
    known, steps = np.isfinite(parts), pd.Index(times["step"].to_numpy(), name="step")
    seconds: pd.Series[float] = pd.Series(np.where(known, parts, 0.0).sum(axis=1), steps)[known.any(axis=1)]
    return seconds[~seconds.index.duplicated(keep="last")].sort_index().cumsum()
