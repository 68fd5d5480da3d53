"""One panel, drawn from its rows of the figure's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
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


TITLE_OVER, TITLE_LETTER = 0.15, 0.058
"""Inches: how far a title may reach beyond its panel, and a letter of it."""
MARK_EVERY = 0.14
"""Distance of the markers on a curve, as a share of the panel's diagonal."""


@dataclass(frozen=True, slots=True)
class Stroke:
    """How a curve is drawn."""

    look: style.Look
    width: float
    """Points."""
    alpha: float
    order: int
    """Higher lies on top."""
    thick: bool
    """Whether it has its arm's markers: a mean, or an arm's only seed."""

    def mark(self) -> dict[str, Any]:
        """Of its points; those of thin lines are small and round."""
        if self.thick:
            return self.look.mark(3.4)
        return {"marker": "o", "markersize": 1.2 + self.width, "markeredgewidth": 0}


def title(ax: Axes, text: str) -> None:
    """Over the panel, smaller where it would not fit."""
    size = mpl.rcParams["axes.titlesize"]
    room = ax.bbox.width / ax.figure.dpi + TITLE_OVER
    ax.set_title(text, fontsize=min(size, size * room / (TITLE_LETTER * len(text))))


def draw(ax: Axes, panel: Panel, rows: pd.DataFrame, heading: str, looks: Mapping[str, style.Look]) -> None:
    """Draws seeds thin, means thick, bands pale; values of 0 on a logarithmic axis as dots in a strip below it.

    `looks` = those of the arms, the same in all panels of a figure.
    """
    title(ax, heading)
    ax.set_xlabel(X_LABELS[panel.x])
    ax.set_ylabel(named(panel.metric))
    if not np.isfinite(rows["y"].to_numpy(np.float64)).any():
        ax.text(0.5, 0.5, "no values", transform=ax.transAxes, ha="center", va="center", color="#666666")
        ax.set(xticks=[], yticks=[])  # a scale of nothing would read as numbers
        return
    floor = log_axis(ax, "y", *_values(rows)) if panel.log else None
    arms = arms_of(rows)
    for index, (arm, _) in enumerate(arms):
        mine = rows[rows["arm"] == arm]
        for (series, _), line in mine.groupby(["series", "seed"], sort=False, dropna=False):
            stroke = _stroke(looks[arm], thick=series == "mean" or len(line) == len(mine))
            every_point = panel.x == "mini_batch" or panel.kind == "eval"
            _draw_line(ax, line, stroke, floor, every_point, index / len(arms))
            if floor is not None:
                _draw_zeros(ax, line, stroke, strip_height(floor, ax.get_ylim()[0], index, len(arms)))
    _x_ticks(ax, panel)
    if not panel.log:
        _linear_axis(ax, panel)


def arms_of(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """The (arm, algorithm) pairs of a table in the order of legends."""
    pairs = rows[["arm", "algorithm"]].drop_duplicates()
    return sorted(zip(pairs["arm"], pairs["algorithm"], strict=True), key=style.arm_order)


def _stroke(look: style.Look, thick: bool) -> Stroke:
    return Stroke(look, 1.4, 1, 3, thick) if thick else Stroke(look, 0.6, 0.5, 2, thick)


def _draw_line(
    ax: Axes, line: pd.DataFrame, stroke: Stroke, floor: float | None, every_point: bool, offset: float
) -> None:
    """A curve with its band; above `floor` if the axis is logarithmic. `offset`, from 0 to 1, keeps the markers of
    curves apart."""
    x, y, low, high = (line[name].to_numpy(np.float64) for name in ("x", "y", "low", "high"))
    if floor is not None:
        y, low, high = np.where(y > 0, y, np.nan), np.maximum(low, floor), np.where(high > floor, high, np.nan)
    dense = visible(y, *([low, high] if np.isfinite(high).any() else []))
    x, y, low, high = x[dense], y[dense], low[dense], high[dense]
    look = stroke.look
    # matplotlib cannot space markers on a curve without a point
    spaced = stroke.thick and not every_point and np.isfinite(y).any()
    some = stroke.mark() | {"markevery": (offset * MARK_EVERY, MARK_EVERY)} if spaced else {}
    ax.plot(x, y, color=look.colour, linestyle=look.dash, linewidth=stroke.width, alpha=stroke.alpha,
            zorder=stroke.order, **some)  # fmt: skip
    _draw_dots(ax, x, y, stroke, np.isfinite(y) & (_lonely(y) | every_point))
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


def _draw_zeros(ax: Axes, line: pd.DataFrame, stroke: Stroke, height: float) -> None:
    x = line["x"].to_numpy(np.float64)
    _draw_dots(ax, x, np.full(len(x), height), stroke, line["y"].to_numpy(np.float64) == 0)


def _draw_dots(ax: Axes, x: Array, y: Array, stroke: Stroke, where: Array) -> None:
    if where.any():
        ax.plot(x[where], y[where], linestyle="", color=stroke.look.colour, alpha=stroke.alpha, zorder=stroke.order,
                **stroke.mark())  # fmt: skip


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
