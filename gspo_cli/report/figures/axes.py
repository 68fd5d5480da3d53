"""One panel, drawn from its rows of the figure's table; logarithmic axes that show zeros."""

from collections.abc import Mapping
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FixedFormatter, FixedLocator, MaxNLocator, NullFormatter

from gspo_cli.report.figures import style, words
from gspo_cli.report.figures.curves import TOKENS, Array, Panel
from gspo_cli.runlog import schema

NOTHING: Array = np.zeros(0)
STRIP = 0.1
"""Height of the strip for zeros under a logarithmic axis, as a share of the decades above it."""
ZERO_LABEL = 0.4
"""Inches that the strip of an x axis needs for its label."""


def decades(values: Array, highs: Array = NOTHING) -> tuple[int, int]:
    """The powers of ten, lowest and highest, between which a logarithmic axis shows the positive values and the upper
    ends of their bands; 1e-4 to 1 if there is none."""
    values = values[values > 0]
    if not len(values):
        return -4, 0
    bottom = int(np.floor(np.log10(values.min())))
    top = max(values.max(), highs[highs > 0].max(initial=0))
    return bottom, max(int(np.ceil(np.log10(top))), bottom + 1)


def log_axis(ax: Axes, which: Literal["x", "y"], values: Array, highs: Array = NOTHING) -> float:
    """Whole decades around the positive values, and below them a grey strip labelled 0 if a value is 0.

    Returns the lowest value of the scale proper.
    """
    bottom, top = decades(values, highs)
    ticks, labels = [10.0**k for k in range(bottom, top + 1)], [f"$10^{{{k}}}$" for k in range(bottom, top + 1)]
    floor = edge = 10.0**bottom
    if (values == 0).any():
        width = ax.bbox.width / ax.figure.dpi
        share = STRIP if which == "y" else max(STRIP, ZERO_LABEL / width)
        edge = floor * 10 ** -(share * (top - bottom))
        span = ax.axvspan if which == "x" else ax.axhspan
        span(edge, floor, color="#eeeeee", linewidth=0, zorder=0)
        ticks, labels = [float(np.sqrt(edge * floor)), *ticks], ["0", *labels]
    ax.set(**{f"{which}scale": "log", f"{which}lim": (edge, 10.0**top)})
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter(labels))
    axis.set_minor_locator(FixedLocator([m * 10.0**k for k in range(bottom, top) for m in range(2, 10)]))
    axis.set_minor_formatter(NullFormatter())
    return floor


def strip_height(floor: float, edge: float, index: int, num_arms: int) -> float:
    """Where the zeros of an arm lie in the strip from `edge` to `floor`: each arm has its own height, so that none
    hides another."""
    return float(floor * (edge / floor) ** (1 - (index + 1) / (num_arms + 1)))


COLUMNS = 300
"""Stretches of a long curve that can be told apart: a thin line is about as wide as one."""
X_LABELS = {"step": "rollout batch", "mini_batch": "mini-batch (update within a rollout batch)"}
"""Of the axes that no metric names."""

TITLE_OVER, TITLE_LETTER = 0.1, 0.063
"""Inches: how far a title may reach beyond its panel, and a letter of it."""
FAINT_FROM = 8
"""Thin lines of seeds in a panel from which they grow fainter, so that they do not bury the means."""
FAINTEST = 0.12
MOST_MARKERS = 12
"""On a curve; they stand at round numbers of batches."""


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
    if panel.x == "tokens":
        words.label_x(ax, TOKENS)
    else:
        ax.set_xlabel(X_LABELS[panel.x])
    words.label_y(ax, panel.metric, panel.paired)
    if _is_share(panel):  # its mean cannot lie beyond, though Student's interval may
        rows = rows.assign(low=rows["low"].clip(lower=0), high=rows["high"].clip(upper=1))
    if not np.isfinite(rows["y"].to_numpy(np.float64)).any():
        no_values(ax)
        return
    floor = log_axis(ax, "y", *_values(rows)) if panel.log else None
    arms = arms_of(rows)
    num_seeds = len(rows.loc[rows["series"] == "seed", ["arm", "seed"]].drop_duplicates())
    alpha = max(FAINTEST, 0.5 * min(1.0, FAINT_FROM / max(1, num_seeds)))
    if panel.paired:
        ax.axhline(0, color="#555555", linewidth=0.8, zorder=1)
    for index, (arm, _) in enumerate(arms):
        mine, look = rows[rows["arm"] == arm], looks[arm]
        for (series, _), line in mine.groupby(["series", "seed"], sort=False, dropna=False):
            thick = series == "mean" or len(line) == len(mine)  # a mean, or an arm's only seed
            stroke = {"color": look.colour, "alpha": 1 if thick else alpha, "zorder": 3 if thick else 2}
            small = {"marker": "o", "markersize": 1.8, "markeredgewidth": 0}
            dots = stroke | {"linestyle": ""} | (look.mark(3.4) if thick else small)
            every_point = panel.x == "mini_batch" or panel.kind == "eval"
            curve = stroke | {"linestyle": look.dash, "linewidth": 1.4 if thick else 0.6}
            if thick and not every_point:
                batch = line["x"].to_numpy() if panel.x == "step" else np.arange(1, len(line) + 1)
                curve |= look.mark(3.4) | {"markevery": marked(batch)}
            _draw_line(ax, line, curve, dots, floor, every_point)
            if floor is not None:
                height = np.full(len(line), strip_height(floor, ax.get_ylim()[0], index, len(arms)))
                _draw_dots(ax, line["x"].to_numpy(np.float64), height, dots, line["y"].to_numpy(np.float64) == 0)
    _x_ticks(ax, panel)
    if not panel.log:
        ax.autoscale_view()
        if _is_share(panel):  # its axis ends at 0, or at 1
            ax.set_ylim(bottom=0 if panel.share_end == 0 else None, top=1 if panel.share_end == 1 else None)


def no_values(ax: Axes) -> None:
    """An empty panel that says so."""
    ax.text(0.5, 0.5, "no values", transform=ax.transAxes, ha="center", va="center", color="#666666")
    ax.set(xticks=[], yticks=[])  # a scale of nothing would read as numbers


def arms_of(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """The (arm, algorithm) pairs of a table in the order of legends."""
    pairs = rows[["arm", "algorithm"]].drop_duplicates()
    return sorted(zip(pairs["arm"], pairs["algorithm"], strict=True), key=style.arm_order)


def _draw_line(
    ax: Axes,
    line: pd.DataFrame,
    curve: Mapping[str, Any],
    dots: Mapping[str, Any],
    floor: float | None,
    every_point: bool,
) -> None:
    """A curve with its band; above `floor` if the axis is logarithmic. `curve`, `dots` = how its line and its single
    points are drawn."""
    x, y, low, high = (line[name].to_numpy(np.float64) for name in ("x", "y", "low", "high"))
    if floor is not None:
        y, low, high = np.where(y > 0, y, np.nan), np.maximum(low, floor), np.where(high > floor, high, np.nan)
    dense = visible(y, *([low, high] if np.isfinite(high).any() else []))
    if "markevery" in curve:
        dense = np.union1d(dense, np.flatnonzero(curve["markevery"]))
        curve = {**curve, "markevery": curve["markevery"][dense].tolist()}
    x, y, low, high = x[dense], y[dense], low[dense], high[dense]
    if np.isfinite(y).any():  # matplotlib cannot space markers on a curve without a point
        ax.plot(x, y, **curve)
    _draw_dots(ax, x, y, dots, np.isfinite(y) & (_lonely(y) | every_point))
    if np.isfinite(high).any():
        ax.fill_between(x, low, high, color=curve["color"], alpha=0.15, linewidth=0, zorder=1)


def marked(batches: Array) -> Array:
    """Which points of a curve have a marker: bool. Every one of a short curve, else every 2nd, 5th, 10th, ..."""
    ends = MaxNLocator(MOST_MARKERS, integer=True, steps=[1, 2, 5, 10]).tick_values(0, len(batches))
    return np.asarray(batches % round(ends[1] - ends[0]) == 0)


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


def _draw_dots(ax: Axes, x: Array, y: Array, dots: Mapping[str, Any], where: Array) -> None:
    if where.any():
        ax.plot(x[where], y[where], **dots)


def _lonely(y: Array) -> Array:
    """Points that no line segment touches."""
    gap = np.concatenate([[True], ~np.isfinite(y), [True]])
    return np.asarray(np.isfinite(y) & gap[:-2] & gap[2:])


def _values(rows: pd.DataFrame) -> tuple[Array, Array]:
    """`y` and the upper ends of the bands."""
    return rows["y"].to_numpy(np.float64), rows["high"].to_numpy(np.float64)


def bands_are_cut(panel: Panel, rows: pd.DataFrame) -> bool:
    """Whether a band reaches below a logarithmic axis, or beyond what a share can be."""
    beyond = (rows["low"] < 0) | (rows["high"] > 1) if _is_share(panel) else rows["low"] < -np.inf
    if panel.log:
        beyond |= rows["low"] < 10.0 ** decades(*_values(rows))[0]
    return bool(beyond.any())


def _is_share(panel: Panel) -> bool:
    return schema.metric(panel.metric).unit == "frac" and not panel.paired


def _x_ticks(ax: Axes, panel: Panel) -> None:
    if panel.x == "tokens":
        ax.xaxis.set_major_formatter(EngFormatter(sep=" "))
        ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    else:
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
