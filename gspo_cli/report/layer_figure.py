"""Figure: expert volatility as a heat map of layer against rollout batch, one panel an arm, one colour scale.

L = MoE layers, X = cells along the rollout batches
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator

from gspo_cli.report import axes, notes, style
from gspo_cli.report.canvas import Grid, framed, lettered
from gspo_cli.report.content import Content
from gspo_cli.report.layers import METRIC, NAMES, cells, layer_rows
from gspo_cli.report.load import Log
from gspo_cli.report.paper import SCREEN, Paper
from gspo_cli.runlog import schema

COLOURS = "viridis"
"""Perceptually uniform, also to readers who cannot tell red from green, and without a grey."""
EMPTY = "#d9d9d9"
BAR = 0.9
"""Inches on the right for the colour bar with its numbers."""


def wanted() -> Collection[tuple[str, str]]:
    """The churn of every layer."""
    return {("step", NAMES)}


def content(logs: Sequence[Log]) -> Content:
    """The mean over the seeds of each arm, a row for each cell."""
    found = [(log, rows) for log in logs if len(rows := layer_rows(log))]
    shown = {log.run.folder for log, _ in found}
    why = f"{NAMES}NN is null or absent: it does not apply, or was not logged"
    excluded = [notes.entry(log.run, None, why) for log in logs if log.run.folder not in shown]
    bad = [(log, int(rows["value"].isna().sum())) for log, rows in found]
    remarks = [notes.not_finite(log, f"{NAMES}NN", "step", count) for log, count in bad if count]
    table = cells(found)
    return Content(table, _captions(table), remarks, excluded, f"no run has a value of {NAMES}NN")


def _captions(table: pd.DataFrame) -> list[str]:
    if not len(table):
        return []
    width = int((table["last"] - table["first"]).max()) + 1
    batches = "one rollout batch" if width == 1 else f"{width} neighbouring rollout batches"
    return [
        f"{METRIC}: {schema.metric(METRIC).definition}.",
        f"A cell is one layer in {batches}: pooled over the updates of a batch, mean over the arm's seeds. It stands "
        "only where all of them have a value.",
        "Layers have their number in the model, counted from 0; a layer without experts has no row. All panels share "
        "one colour scale from 0, stretched by the square root so that low values can be told apart.",
    ]


def draw(table: pd.DataFrame, lines: Sequence[str], paper: Paper = SCREEN) -> Figure:
    """Two panels in a row where there is room, the colour bar on their right."""
    arms = axes.arms_of(table)
    num_layers = table["layer"].nunique()
    grid = Grid(
        min(2, len(arms), paper.columns),
        panel_height=float(np.clip(0.03 * num_layers, 0.8, 1.5)),
        right=BAR,
        under=0.18,
    )
    top = float(table["y"].max())
    scale = PowerNorm(0.5, 0, top if top > 0 else 1)
    empty = [Patch(color=EMPTY, label="no value")] if table["y"].isna().any() else []
    with style.applied():
        figure, places = framed(len(arms), [empty], lines, grid, paper)
        counts = [int(table.loc[table["arm"] == arm, "n"].iloc[0]) for arm, _ in arms]
        titles = lettered(f"{arm} (N = {count})" for (arm, _), count in zip(arms, counts, strict=True))
        for ax, (arm, _), text in zip(places, arms, titles, strict=True):
            axes.title(ax, text)
            _draw_arm(ax, table[table["arm"] == arm], scale)
        _label_edges(places, grid.columns)
        _draw_bar(figure, places, scale)
    return figure


def _draw_arm(ax: Axes, rows: pd.DataFrame, scale: PowerNorm) -> None:
    grid = rows.pivot(index="layer", columns="first", values="y")
    num_layers, num_cells = grid.shape
    first, last = int(rows["first"].min()), int(rows["last"].max())
    width = int((rows["last"] - rows["first"]).max()) + 1
    ax.grid(False)
    ax.set_facecolor(EMPTY)
    ax.imshow(
        np.ma.masked_invalid(grid.to_numpy(np.float64)), cmap=COLOURS, norm=scale, origin="lower",
        aspect="auto", interpolation="nearest",
        extent=(first - 0.5, first + width * num_cells - 0.5, -0.5, num_layers - 0.5),
    )  # fmt: skip
    # the last cell may cover fewer batches than the others
    ax.set_xlim(first - 0.5, last + 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    shown = range(0, num_layers, -(-num_layers // 6))
    ax.yaxis.set_major_locator(FixedLocator(list(shown)))
    ax.yaxis.set_major_formatter(FixedFormatter([f"{grid.index[index]:g}" for index in shown]))


def _label_edges(places: Sequence[Axes], columns: int) -> None:
    """Names the axes on the left and at the bottom."""
    for ax in places[::columns]:
        ax.set_ylabel("layer")
    for ax in places[-columns:]:
        ax.set_xlabel(axes.X_LABELS["step"])


def _draw_bar(figure: Figure, places: Sequence[Axes], scale: PowerNorm) -> None:
    """Beside the panels, as high as all rows together, 2.2 inches at most."""
    boxes = [ax.get_position() for ax in places]
    top, left = max(box.y1 for box in boxes), max(box.x1 for box in boxes) + 0.15 / figure.get_figwidth()
    height = min(top - min(box.y0 for box in boxes), 2.2 / figure.get_figheight())
    bar = figure.colorbar(
        ScalarMappable(scale, COLOURS), cax=figure.add_axes((left, top - height, 0.1 / figure.get_figwidth(), height))
    )
    bar.set_label(axes.named(METRIC))
    ticks = _ticks(float(scale.vmax or 0))
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.minorticks_off()


def _ticks(top: float) -> list[float]:
    """0, and 1, 2, 5 times powers of ten from a fiftieth of the top on, which suits a square-root scale."""
    low = int(np.floor(np.log10(top / 50)))
    steps = [float(f"{digit}e{power}") for power in range(low, low + 4) for digit in (1, 2, 5)]
    return [0.0, *(step for step in steps if top / 50 <= step <= top)]
