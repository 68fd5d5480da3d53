"""One panel, drawn from its rows of the figure's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FixedFormatter, FixedLocator, MaxNLocator, NullFormatter

from gspo_cli.report import style
from gspo_cli.report.curves import TOKENS, Array, Panel
from gspo_cli.runlog import schema

X_LABELS = {
    "step": "rollout batch",
    "tokens": f"{TOKENS} [{schema.metric(TOKENS).unit}]",
    "mini_batch": "mini-batch (update within a rollout batch)",
}
STRIP = 0.1
"""Height of the strip for zeros under a logarithmic axis, as a share of the decades above it."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a curve is drawn."""

    colour: str
    dash: style.Dash
    width: float
    """Points."""
    alpha: float
    order: int
    """Higher lies on top."""


def draw(ax: Axes, panel: Panel, rows: pd.DataFrame, title: str, dashes: Mapping[str, style.Dash]) -> None:
    """Draws seeds thin, means thick, bands pale; values of 0 on a logarithmic axis as dots in a strip below it.

    `dashes` = line style of each arm, the same in all panels of a figure.
    """
    ax.set_title(title)
    ax.set_xlabel(X_LABELS[panel.x])
    ax.set_ylabel(f"{panel.metric} [{schema.metric(panel.metric).unit}]")
    if not np.isfinite(rows["y"].to_numpy(np.float64)).any():
        ax.text(0.5, 0.5, "no values", transform=ax.transAxes, ha="center", va="center", color="#666666")
    floor = log_axis(ax, rows) if panel.log else None
    arms = arms_of(rows)
    for index, (arm, algorithm) in enumerate(arms):
        mine = rows[rows["arm"] == arm]
        for (series, _), line in mine.groupby(["series", "seed"], sort=False, dropna=False):
            look = _look(style.colour(algorithm), dashes[arm], thick=series == "mean" or len(line) == len(mine))
            _draw_line(ax, line, look, floor, every_point=panel.x == "mini_batch" or panel.kind == "eval")
            if floor is not None:
                # each arm has its own height in the strip, so that none hides another
                share = 1 - (index + 1) / (len(arms) + 1)
                _draw_zeros(ax, line, look, floor * (ax.get_ylim()[0] / floor) ** share)
    _x_ticks(ax, panel)
    if not panel.log:
        _linear_axis(ax, panel)


def arms_of(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """The (arm, algorithm) pairs of a table in the order of legends."""
    pairs = rows[["arm", "algorithm"]].drop_duplicates()
    return sorted(zip(pairs["arm"], pairs["algorithm"], strict=True), key=style.arm_order)


def _look(colour: str, dash: style.Dash, thick: bool) -> Look:
    """Thick = a mean, or an arm's only seed."""
    return Look(colour, dash, 1.6, 1, 3) if thick else Look(colour, dash, 0.6, 0.5, 2)


def _draw_line(ax: Axes, line: pd.DataFrame, look: Look, floor: float | None, every_point: bool) -> None:
    """A curve with its band; above `floor` if the axis is logarithmic."""
    x, y, low, high = (line[name].to_numpy(np.float64) for name in ("x", "y", "low", "high"))
    if floor is not None:
        y, low, high = np.where(y > 0, y, np.nan), np.maximum(low, floor), np.where(high > floor, high, np.nan)
    ax.plot(x, y, color=look.colour, linestyle=look.dash, linewidth=look.width, alpha=look.alpha, zorder=look.order)
    _draw_dots(ax, x, y, look, np.isfinite(y) & (_lonely(y) | every_point))
    if np.isfinite(high).any():
        ax.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0, zorder=1)


def _draw_zeros(ax: Axes, line: pd.DataFrame, look: Look, height: float) -> None:
    x = line["x"].to_numpy(np.float64)
    _draw_dots(ax, x, np.full(len(x), height), look, line["y"].to_numpy(np.float64) == 0)


def _draw_dots(ax: Axes, x: Array, y: Array, look: Look, where: Array) -> None:
    if where.any():
        ax.plot(x[where], y[where], "o", color=look.colour, markersize=1.2 + look.width, markeredgewidth=0,
                alpha=look.alpha, zorder=look.order)  # fmt: skip


def _lonely(y: Array) -> Array:
    """Points that no line segment touches."""
    gap = np.concatenate([[True], ~np.isfinite(y), [True]])
    return np.asarray(np.isfinite(y) & gap[:-2] & gap[2:])


def has_zeros(rows: pd.DataFrame) -> bool:
    """Whether a logarithmic axis over these rows needs a strip for zeros."""
    return bool((rows["y"] == 0).any())


def decades(rows: pd.DataFrame) -> tuple[int, int]:
    """The powers of ten, lowest and highest, between which a logarithmic axis shows the positive values of `y` and
    the upper ends of the bands; 1e-4 to 1 if there is none."""
    lines, highs = rows["y"].to_numpy(np.float64), rows["high"].to_numpy(np.float64)
    lines, highs = lines[lines > 0], highs[highs > 0]
    if not len(lines):
        return -4, 0
    bottom = int(np.floor(np.log10(lines.min())))
    return bottom, max(int(np.ceil(np.log10(max(lines.max(), highs.max(initial=0))))), bottom + 1)


def bands_are_cut(panel: Panel, rows: pd.DataFrame) -> bool:
    """Whether a band reaches below the lowest value that the panel's axis can show."""
    lowest = 10.0 ** decades(rows)[0] if panel.log else 0.0 if _is_share(panel) else -np.inf
    return bool((rows["low"] < lowest).any())


def _is_share(panel: Panel) -> bool:
    return schema.metric(panel.metric).unit == "frac"


def log_axis(ax: Axes, rows: pd.DataFrame) -> float:
    """Whole decades around the positive values, and below them a grey strip labelled 0 if a value is 0.

    Returns the lowest value of the scale proper.
    """
    bottom, top = decades(rows)
    ticks, labels = [10.0**k for k in range(bottom, top + 1)], [f"$10^{{{k}}}$" for k in range(bottom, top + 1)]
    floor = edge = 10.0**bottom
    if has_zeros(rows):
        edge = floor * 10 ** -(STRIP * (top - bottom))
        ax.axhspan(edge, floor, color="#eeeeee", linewidth=0, zorder=0)
        ticks, labels = [float(np.sqrt(edge * floor)), *ticks], ["0", *labels]
    ax.set_yscale("log")
    ax.set_ylim(edge, 10.0**top)
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_major_formatter(FixedFormatter(labels))
    ax.yaxis.set_minor_locator(FixedLocator([m * 10.0**k for k in range(bottom, top) for m in range(2, 10)]))
    ax.yaxis.set_minor_formatter(NullFormatter())
    return floor


def _linear_axis(ax: Axes, panel: Panel) -> None:
    """A share starts at 0: its band may reach below, its values cannot."""
    ax.autoscale_view()
    if _is_share(panel):
        ax.set_ylim(bottom=0)


def _x_ticks(ax: Axes, panel: Panel) -> None:
    if panel.x == "tokens":
        ax.xaxis.set_major_formatter(EngFormatter(sep=" "))
        ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    else:
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
