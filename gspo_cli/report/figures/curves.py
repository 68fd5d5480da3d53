"""From logs to the numbers of a figure: one tidy table, from which alone it is drawn."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.special import stdtrit

from gspo_cli.report.figures.style import SCREEN, Paper
from gspo_cli.report.runs.log import Log


@dataclass(frozen=True, slots=True)
class Content:
    """What a figure shows and must say."""

    table: pd.DataFrame
    """Its csv, from which alone it is drawn; empty = there is no figure."""
    captions: list[str]
    """How to read it."""
    remarks: list[str]
    """What a reader should know of the logs."""
    excluded: list[dict[str, Any]]
    """The runs that are not in it, as `notes.entry` makes them."""
    absent: str
    """Why there is no figure, if there is none."""

    @property
    def has_band(self) -> bool:
        """Whether it shows an interval."""
        return "low" in self.table and bool(self.table["low"].notna().any())


class StudyFigure(Protocol):
    """A figure of a study; a module or an object."""

    @property
    def title(self) -> str:
        """In plain words; in a paper the caption begins with it."""

    def wanted(self) -> Collection[tuple[str, str]]:
        """(kind of line, metric) of all that it reads; a metric may end in `/layer_`."""

    def content(self, logs: Sequence[Log]) -> Content:
        """What it shows of these logs."""

    def draw(self, table: pd.DataFrame, lines: Sequence[str], paper: Paper = SCREEN) -> Figure:
        """The figure of a table, with the notes under it where the paper wants them."""


TOKENS = "compute/gen_tokens"
GRID = 400
"""Most points of a mean curve against tokens."""
BAND = "95 % t interval over seeds, pointwise"
MIN_SEEDS = 3
"""With two seeds the interval is 12.7 standard errors wide: it would only hide the curves."""

TABLE = ["panel", "metric", "arm", "algorithm", "series", "seed", "x", "y", "low", "high", "n"]
"""Columns of a figure's table. `series` is `seed` or `mean`; `y` is empty at a gap; `low` and `high` are the band, `n`
the seeds behind a mean."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes of a figure."""

    name: str
    metric: str
    kind: Literal["rollout", "update", "step", "eval"]
    """The log lines it is taken from."""
    x: Literal["step", "tokens", "mini_batch"]
    """Rollout batch; tokens sampled so far; optimizer step within the rollout batch (1-based, mean over batches)."""
    log: bool = False
    """A logarithmic y axis."""
    share_end: Literal[0, 1] = 0
    """Where the linear axis of a share ends: what is of interest is its distance from there."""
    paired: bool = False
    """Shows each arm's difference to the baseline instead, seed by seed, as the tests see it."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What one run shows in a panel."""

    x: Array
    y: Array
    """float64; NaN where the metric is null or not finite."""
    non_finite: int
    """Values that were nan or infinite."""


def curve(log: Log, panel: Panel) -> Curve | None:
    """One run's curve; None if the run has no value of the panel's metric (or of tokens, against tokens)."""
    frame = log.frame[(log.frame["metric"] == panel.metric) & (log.frame["kind"] == panel.kind)]
    finite = frame["value"].where(np.isfinite(frame["value"]))
    num_bad = int(finite.isna().sum())
    if not len(frame):
        return None
    if panel.x == "mini_batch":
        means = finite.groupby(frame["mini_batch"].astype("int64") + 1).mean()
        return Curve(means.index.to_numpy(np.float64), means.to_numpy(np.float64), num_bad)
    by_step = finite.set_axis(frame["step"])
    if panel.kind == "eval":
        by_step = by_step.sort_index()
    else:
        # a step without the metric becomes a gap; joining its neighbours would draw a value nobody measured
        by_step = by_step.reindex(np.arange(by_step.index.min(), by_step.index.max() + 1))
    if panel.x == "step":
        return Curve(by_step.index.to_numpy(np.float64), by_step.to_numpy(np.float64), num_bad)
    rows = log.frame[log.frame["metric"] == TOKENS]
    sampled = rows["value"].set_axis(rows["step"])
    tokens = np.where(by_step.index == 0, 0.0, sampled.reindex(by_step.index).to_numpy(np.float64))
    known = np.isfinite(tokens)
    return Curve(tokens[known], by_step.to_numpy(np.float64)[known], num_bad) if known.any() else None


def common_grid(curves: list[Curve]) -> Array:
    """Positions [X] at which a mean over the curves is taken: theirs if they agree, else evenly spaced over the range
    that all of them cover (empty if there is none)."""
    first = curves[0].x
    if all(np.array_equal(first, c.x) for c in curves):
        return first
    low, high = max(c.x[0] for c in curves), min(c.x[-1] for c in curves)
    return np.linspace(low, high, min(GRID, max(len(c.x) for c in curves))) if low <= high else np.zeros(0)


def mean_and_band(values_SX: Array) -> tuple[Array, Array, Array]:
    """Mean over seeds and its 95 % t interval at every position: mean, low, high, each [X].

    m +- t(0.975, S - 1) * sd / sqrt(S), sd with S - 1. NaN wherever one seed has no value, so that a run which ended
    early cannot shift the mean; the band is NaN with fewer than three seeds.
    """
    num_seeds = len(values_SX)
    mean = values_SX.mean(axis=0)
    if num_seeds < MIN_SEEDS:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    half = float(stdtrit(num_seeds - 1, 0.975)) * values_SX.std(axis=0, ddof=1) / np.sqrt(num_seeds)
    return mean, mean - half, mean + half


def mean_curve(curves: list[Curve], panel: Panel) -> dict[str, Any]:
    """Mean over the seeds of one arm as table columns; against tokens by linear interpolation on a common grid."""
    if panel.x == "tokens":
        grid = common_grid(curves)
        values_SX = np.stack([np.interp(grid, c.x, c.y) for c in curves])
    else:
        grid = np.unique(np.concatenate([c.x for c in curves]))
        values_SX = np.stack([pd.Series(c.y, c.x).reindex(grid).to_numpy(np.float64) for c in curves])
    mean, low, high = mean_and_band(values_SX)
    return {"x": grid, "y": mean, "low": low, "high": high, "n": len(curves)}


def panel_table(panel: Panel, found: list[tuple[Log, Curve]]) -> pd.DataFrame:
    """The rows of a panel: every seed's curve, then, for an arm with several seeds, their mean; of a paired panel the
    mean differences alone."""
    parts = [pd.DataFrame(columns=TABLE)]
    series = _differences if panel.paired else _series
    parts += [pd.DataFrame(columns) for columns in series(panel, found)]
    return pd.concat([p for p in parts if len(p)] or parts).reindex(columns=TABLE)


def _series(panel: Panel, found: list[tuple[Log, Curve]]) -> Iterator[dict[str, Any]]:
    head = {"panel": panel.name, "metric": panel.metric}
    for arm, algorithm in dict.fromkeys((log.run.arm, log.run.algorithm) for log, _ in found):
        mine = [(log.run.seed, c) for log, c in found if log.run.arm == arm]
        about = {**head, "arm": arm, "algorithm": algorithm}
        for seed, c in mine:
            yield {**about, "series": "seed", "seed": seed, "x": c.x, "y": c.y, "n": 1}
        if len(mine) > 1:
            yield {**about, "series": "mean", **mean_curve([c for _, c in mine], panel)}


def _differences(panel: Panel, found: list[tuple[Log, Curve]]) -> Iterator[dict[str, Any]]:
    """Of every arm that shares two or more seeds with the baseline: the mean of its difference with the t band."""
    by_arm: dict[tuple[str, str], dict[int, Curve]] = {}
    for log, c in found:
        by_arm.setdefault((log.run.arm, log.run.algorithm), {})[log.run.seed] = c
    baseline = next((log.run.baseline for log, _ in found), "")
    against = next((mine for (arm, _), mine in by_arm.items() if arm == baseline), {})
    for (arm, algorithm), mine in by_arm.items():
        seeds = sorted(mine.keys() & against.keys())
        if arm == baseline or len(seeds) < 2:
            continue
        pairs = [(pd.Series(mine[s].y, mine[s].x), pd.Series(against[s].y, against[s].x)) for s in seeds]
        grid = np.unique(np.concatenate([c.index.to_numpy() for pair in pairs for c in pair]))
        d_SX = np.stack([(b.reindex(grid) - a.reindex(grid)).to_numpy(np.float64) for b, a in pairs])
        mean, low, high = mean_and_band(d_SX)
        yield {"panel": panel.name, "metric": panel.metric, "arm": arm, "algorithm": algorithm, "series": "mean",
               "x": grid, "y": mean, "low": low, "high": high, "n": len(seeds)}  # fmt: skip
