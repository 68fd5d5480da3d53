"""One panel, drawn from its rows of the figure's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from gspo_cli.report import style
from gspo_cli.report.curves import TOKENS, Array, Panel
from gspo_cli.report.log_axis import decades, log_axis, strip_height
from gspo_cli.runlog import schema


def named(metric: str) -> str:
    """A metric's name on an axis, with its unit."""
    return f"{metric} [{schema.metric(metric).unit}]"


COLUMNS = 300
"""Stretches of a long curve that can be told apart: a thin line is about as wide as one."""
X_LABELS = {
    "step": "rollout batch",
    "tokens": named(TOKENS),
    "mini_batch": "mini-batch (update within a rollout batch)",
}


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
    ax.set_ylabel(named(panel.metric))
    if not np.isfinite(rows["y"].to_numpy(np.float64)).any():
        ax.text(0.5, 0.5, "no values", transform=ax.transAxes, ha="center", va="center", color="#666666")
    floor = log_axis(ax, "y", *_values(rows)) if panel.log else None
    arms = arms_of(rows)
    for index, (arm, algorithm) in enumerate(arms):
        mine = rows[rows["arm"] == arm]
        for (series, _), line in mine.groupby(["series", "seed"], sort=False, dropna=False):
            look = _look(style.colour(algorithm), dashes[arm], thick=series == "mean" or len(line) == len(mine))
            _draw_line(ax, line, look, floor, every_point=panel.x == "mini_batch" or panel.kind == "eval")
            if floor is not None:
                _draw_zeros(ax, line, look, strip_height(floor, ax.get_ylim()[0], index, len(arms)))
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
    dense = visible(y, *([low, high] if np.isfinite(high).any() else []))
    x, y, low, high = x[dense], y[dense], low[dense], high[dense]
    ax.plot(x, y, color=look.colour, linestyle=look.dash, linewidth=look.width, alpha=look.alpha, zorder=look.order)
    _draw_dots(ax, x, y, look, np.isfinite(y) & (_lonely(y) | every_point))
    if np.isfinite(high).any():
        ax.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0, zorder=1)


def visible(*curves: Array) -> Array:
    """Which points of a long curve and its band are drawn: of each of `COLUMNS` stretches the first, the last, the
    lowest and the highest, which look as all of them do. All points of a short curve, and where there are gaps."""
    num_points = len(curves[0])
    if num_points <= 4 * COLUMNS or not all(np.isfinite(curve).all() for curve in curves):
        return np.arange(num_points)
    width = -(-num_points // COLUMNS)
    starts = np.arange(0, num_points, width)
    kept = [starts, np.minimum(starts + width, num_points) - 1]
    for curve in curves:
        stretches = np.pad(curve, (0, -num_points % width), mode="edge").reshape(-1, width)
        kept += [starts + stretches.argmin(1), starts + stretches.argmax(1)]
    return np.unique(np.minimum(np.concatenate(kept), num_points - 1))


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


def _values(rows: pd.DataFrame) -> tuple[Array, Array]:
    """`y` and the upper ends of the bands."""
    return rows["y"].to_numpy(np.float64), rows["high"].to_numpy(np.float64)


def bands_are_cut(panel: Panel, rows: pd.DataFrame) -> bool:
    """Whether a band reaches beyond the end of the panel's axis."""
    if panel.log:
        return bool((rows["low"] < 10.0 ** decades(*_values(rows))[0]).any())
    beyond = rows["low"] < 0 if panel.share_end == 0 else rows["high"] > 1
    return _is_share(panel) and bool(beyond.any())


def _is_share(panel: Panel) -> bool:
    return schema.metric(panel.metric).unit == "frac"


def _linear_axis(ax: Axes, panel: Panel) -> None:
    """A share ends at 0, or at 1: its band may reach beyond, its values cannot."""
    ax.autoscale_view()
    if _is_share(panel):
        ax.set_ylim(bottom=0 if panel.share_end == 0 else None, top=1 if panel.share_end == 1 else None)


def _x_ticks(ax: Axes, panel: Panel) -> None:
    if panel.x == "tokens":
        ax.xaxis.set_major_formatter(EngFormatter(sep=" "))
        ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    else:
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
