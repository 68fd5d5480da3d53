"""Figure: the effect of the treatment against one recipe key, as a line with intervals, or two, as a heat map."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from gspo_cli.report.figures import style, words
from gspo_cli.report.figures.canvas import Grid, framed
from gspo_cli.report.figures.style import SCREEN, Paper

TITLE = "Where one algorithm is ahead of the other"
COLOURS = "RdBu"
"""Red = the baseline is ahead, blue = the treatment; legible without colour too, as cells have their number."""
ROW = 0.46
"""Inches of a row of cells."""
EQUAL = "#e0e0e0"
SHORT = {"no_claim": "too few seeds", "two_checkpoints": "one seed", "suggestive_equal": "suggests equal"}
"""Verdicts in the words of a cell; the others as they are."""


def draw(
    table: pd.DataFrame, axes: Sequence[str], arms: tuple[str, str], lines: Sequence[str], paper: Paper = SCREEN
) -> Figure:
    """The figure of `compare.effect_map.map_table`; `arms` = (baseline, treatment)."""
    with style.applied():
        if len(axes) == 1:
            figure, (ax,) = framed(1, [], lines, TITLE, paper=paper)
            _line(ax, table, axes[0])
        else:
            rows = table[axes[1]].nunique()
            figure, (ax,) = framed(1, [], lines, TITLE, Grid(1, panel_height=max(1.2, ROW * rows), right=1.0), paper)
            _heat(figure, ax, table, axes)
        ax.set_title(f"{arms[1]} minus {arms[0]}", loc="left")
    return figure


def _line(ax: Axes, table: pd.DataFrame, key: str) -> None:
    at = np.arange(len(table))
    colour = "#0072b2"
    ax.axhline(0, color="#999999", linewidth=0.6, zorder=1)
    ax.vlines(at, table["low"], table["high"], color=colour, linewidth=1.0, zorder=2)
    ax.plot(at, table["effect"], color=colour, linewidth=0.7, alpha=0.5, zorder=2)
    for decided, face in ((True, colour), (False, "white")):
        mine = table["decided"].to_numpy(bool) == decided
        ax.plot(at[mine], table["effect"][mine], "o", color=colour, markerfacecolor=face, markersize=5, zorder=3)
    for x, (_, row) in zip(at, table.iterrows(), strict=True):
        count = f"N = {row['n']}" if row["n"] else str(row["verdict"])
        ax.annotate(count, (x, 0.02), xycoords=("data", "axes fraction"), ha="center", fontsize=6)
    _ticks(ax.xaxis, table[key].tolist())
    ax.margins(y=0.18)
    ax.set(xlim=(-0.5, len(table) - 0.5), xlabel=words.words(key), ylabel=f"effect [{_unit(table)}]")


def _heat(figure: Figure, ax: Axes, table: pd.DataFrame, axes: Sequence[str]) -> None:
    xs, ys = (list(dict.fromkeys(_in_order(table, key))) for key in axes)
    known = table["effect"][table["decided"]].abs()
    limit = float(known.max()) if len(known) and known.max() > 0 else 1.0
    scale = ScalarMappable(Normalize(-limit, limit), COLOURS)
    for _, row in table.iterrows():
        x, y = xs.index(row[axes[0]]), ys.index(row[axes[1]])
        face = "white" if not row["decided"] else EQUAL if row["verdict"] == "equal" else scale.to_rgba(row["effect"])
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="#999999", linewidth=0.6))
        dark = row["decided"] and row["verdict"] != "equal" and abs(row["effect"]) > 0.6 * limit
        ax.text(x, y, _cell(row), ha="center", va="center", fontsize=6.2, color="white" if dark else "black")
    ax.set(xlim=(-0.5, len(xs) - 0.5), ylim=(-0.5, len(ys) - 0.5))
    _ticks(ax.xaxis, xs)
    _ticks(ax.yaxis, ys)
    ax.grid(visible=False)
    ax.set(xlabel=words.words(axes[0]), ylabel=words.words(axes[1]))
    if len(known):
        box = ax.get_position()
        place = (box.x1 + 0.15 / figure.get_figwidth(), box.y0, 0.1 / figure.get_figwidth(), box.height)
        bar = figure.colorbar(scale, cax=figure.add_axes(place, label="<colorbar>"))
        bar.set_label(f"effect [{_unit(table)}]", fontsize=6.5)


def _in_order(table: pd.DataFrame, key: str) -> list[str]:
    """The values of an axis, numbers by size."""
    values = table[key].tolist()
    try:
        return sorted(values, key=lambda text: float(str(text).split("-")[0] or "nan"))
    except ValueError:
        return values


def _cell(row: pd.Series) -> str:
    if not np.isfinite(row["effect"]):
        return str(row["verdict"])
    interval = f"\n[{row['low']:+.2g}, {row['high']:+.2g}]" if np.isfinite(row["low"]) else ""
    verdict = "" if row["decided"] and row["verdict"] != "equal" else f", {SHORT.get(row['verdict'], row['verdict'])}"
    return f"{row['effect']:+.2g}{interval}\nN = {row['n']}{verdict}"


def _unit(table: pd.DataFrame) -> str:
    return ", ".join(unit for unit in dict.fromkeys(table["unit"]) if unit) or "1"


def _ticks(axis: Axis, labels: Sequence[str]) -> None:
    axis.set_major_locator(FixedLocator(range(len(labels))))
    axis.set_major_formatter(FixedFormatter(list(labels)))
    axis.set_minor_locator(NullLocator())
