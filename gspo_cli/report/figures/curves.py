"""From logs to the numbers of a figure: one tidy table, from which alone it is drawn."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.special import stdtrit

from gspo_cli.report.figures.style import Paper
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


@dataclass(frozen=True, slots=True)
class StudyFigure:
    """A figure of a study."""

    title: str
    """In plain words; in a paper the caption begins with it."""
    wanted: Collection[tuple[str, str]]
    """(kind of line, metric) of all that it reads; a metric may end in `/layer_`."""
    content: Callable[[Sequence[Log]], Content]
    """What it shows of these logs."""
    draw: Callable[[pd.DataFrame, Sequence[str], Paper], Figure]
    """The figure of a table, with the notes under it where the paper wants them."""


TOKENS = "compute/gen_tokens"
GRID = 400
"""Most points of a mean curve against tokens."""
BAND = "95 % t interval over seeds, pointwise"
MIN_SEEDS = 5
"""With three seeds the interval is 4.3 standard errors to each side: it reaches beyond what a reward can be, and hides
the curves."""

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


Curve = pd.Series
"""What one run shows in a panel, by x; NaN where the metric is null or not finite."""


def curve(log: Log, panel: Panel) -> Curve | None:
    """One run's curve; None if the run has no value of the panel's metric (or of tokens, against tokens)."""
    frame = log.values(panel.kind, panel.metric)
    if not len(frame):
        return None
    finite = frame["value"].where(np.isfinite(frame["value"]))
    if panel.x == "mini_batch":
        return finite.groupby(frame["mini_batch"].astype("float64") + 1).mean()
    by_step = finite.set_axis(frame["step"].astype("float64"))
    if panel.kind == "eval":
        by_step = by_step.sort_index()
    else:
        # a step without the metric becomes a gap; joining its neighbours would draw a value nobody measured
        by_step = by_step.reindex(np.arange(by_step.index.min(), by_step.index.max() + 1))
    if panel.x == "step":
        return by_step
    rows = log.frame[log.frame["metric"] == TOKENS]
    tokens = rows["value"].set_axis(rows["step"]).reindex(by_step.index).to_numpy(np.float64)
    against = by_step.set_axis(np.where(by_step.index == 0, 0.0, tokens))
    known = against[np.isfinite(against.index)]
    return known if len(known) else None


def common_grid(curves: list[Curve]) -> Array:
    """Positions [X] at which a mean over the curves is taken: theirs if they agree, else evenly spaced over the range
    that all of them cover (empty if there is none)."""
    first = curves[0].index
    if all(first.equals(c.index) for c in curves):
        return first.to_numpy()
    low, high = max(c.index[0] for c in curves), min(c.index[-1] for c in curves)
    return np.linspace(low, high, min(GRID, max(map(len, curves)))) if low <= high else np.zeros(0)


def mean_and_band(grid: Array, values_SX: Array) -> dict[str, Any]:
    """Mean over seeds and its 95 % t interval at every position, as table columns.

    m +- t(0.975, S - 1) * sd / sqrt(S), sd with S - 1. NaN wherever one seed has no value, so that a run which ended
    early cannot shift the mean; the band is NaN with fewer than `MIN_SEEDS`.
    """
    num_seeds, mean, half = len(values_SX), values_SX.mean(axis=0), np.array(np.nan)
    if num_seeds >= MIN_SEEDS:
        half = float(stdtrit(num_seeds - 1, 0.975)) * values_SX.std(axis=0, ddof=1) / np.sqrt(num_seeds)
    return {"x": grid, "y": mean, "low": mean - half, "high": mean + half, "n": num_seeds}


def mean_curve(curves: list[Curve], panel: Panel) -> dict[str, Any]:
    """Mean over the seeds of one arm as table columns; against tokens by linear interpolation on a common grid."""
    if panel.x == "tokens":
        grid = common_grid(curves)
        return mean_and_band(grid, np.stack([np.interp(grid, c.index, c) for c in curves]))
    together = pd.concat(curves, axis=1).sort_index()
    return mean_and_band(together.index.to_numpy(), together.to_numpy(np.float64).T.copy())


def panel_rows(panel: Panel, found: Sequence[tuple[Log, Curve]]) -> Iterator[dict[str, Any]]:
    """Columns of a panel: every seed's curve, then, for an arm with several seeds, their mean; of a paired panel the
    differences of every arm that shares two or more seeds with the baseline."""
    arms: dict[tuple[str, str], dict[int, Curve]] = {}
    for log, c in found:
        arms.setdefault((log.run.arm, log.run.algorithm), {})[log.run.seed] = c
    baseline = found[0][0].run.baseline if found else ""
    against = next((mine for (arm, _), mine in arms.items() if arm == baseline), {})
    for (arm, algorithm), mine in arms.items():
        about = {"panel": panel.name, "metric": panel.metric, "arm": arm, "algorithm": algorithm}
        if panel.paired:
            shared = sorted(mine.keys() & against.keys()) if arm != baseline else []
            mine = {seed: mine[seed] - against[seed] for seed in shared if len(shared) > 1}
        for seed, c in mine.items():
            yield {**about, "series": "seed", "seed": seed, "x": c.index, "y": c.array, "n": 1}
        if len(mine) > 1:
            yield {**about, "series": "mean", **mean_curve(list(mine.values()), panel)}


def table_of(parts: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Columns of several panels as one table."""
    frames = [frame for part in parts if len(frame := pd.DataFrame(part))]
    return pd.concat(frames or [pd.DataFrame()], ignore_index=True).reindex(columns=TABLE)
