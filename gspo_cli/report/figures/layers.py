"""Figure: expert volatility as a heat map of layer against rollout batch, one panel an arm, one colour scale.

L = MoE layers, X = cells along the rollout batches
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator

from gspo_cli.report.figures import axes, notes, style
from gspo_cli.report.figures.canvas import Grid, framed, lettered
from gspo_cli.report.figures.curves import Array, Content, StudyFigure
from gspo_cli.report.figures.style import SCREEN, Paper
from gspo_cli.report.runs.log import LAYERS, Log
from gspo_cli.runlog import schema

TITLE = "Experts that change with an update, layer by layer"
METRIC = "moe/slot_churn_step"
NAMES = METRIC + LAYERS
COLUMNS = 400
"""Most cells in a row: as many as an image of half the page's width has points for."""
TABLE = ["arm", "algorithm", "layer", "first", "last", "y", "n"]
"""Columns of the table. A cell covers the rollout batches `first` to `last`; `y` is empty where it has no value; `n` =
the arm's seeds."""


def layer_rows(log: Log) -> pd.DataFrame:
    """A run's values: `step`, `layer`, `value` (NaN where it is not finite)."""
    names = log.frame["metric"].cat.categories
    numbers = {name: int(name.removeprefix(NAMES)) for name in names if name.startswith(NAMES)}
    rows = log.frame[log.frame["metric"].isin(list(numbers)) & (log.frame["kind"] == "step")]
    value = rows["value"].where(np.isfinite(rows["value"]))
    return pd.DataFrame({"step": rows["step"], "layer": rows["metric"].map(numbers).astype("int64"), "value": value})


def cells(runs: Sequence[tuple[Log, pd.DataFrame]]) -> pd.DataFrame:
    """The table of runs with their `layer_rows`; all arms share layers and rollout batches."""
    if not runs:
        return pd.DataFrame(columns=TABLE)
    layers = sorted(set().union(*(rows["layer"].unique() for _, rows in runs)))
    steps = np.arange(min(rows["step"].min() for _, rows in runs), max(rows["step"].max() for _, rows in runs) + 1)
    width = -(-len(steps) // COLUMNS)
    arms = dict.fromkeys((log.run.arm, log.run.algorithm) for log, _ in runs)
    parts = []
    for arm, algorithm in arms:
        wide = [rows.pivot(index="layer", columns="step", values="value") for log, rows in runs if log.run.arm == arm]
        mine = [values.reindex(index=layers, columns=steps).to_numpy() for values in wide]
        cells_LX = _merge(np.stack(mine).mean(axis=0), width)
        first = np.tile(steps[::width], len(layers))
        layer, last = np.repeat(layers, cells_LX.shape[1]), np.minimum(first + width - 1, steps[-1])
        columns = (arm, algorithm, layer, first, last, cells_LX.ravel(), len(mine))
        parts.append(pd.DataFrame(dict(zip(TABLE, columns, strict=True))))
    return pd.concat(parts, ignore_index=True)


def _merge(values_LX: Array, width: int) -> Array:
    """Means over `width` neighbouring rollout batches; NaN where one of them has no value."""
    starts = range(0, values_LX.shape[1], width)
    return np.stack([values_LX[:, start : start + width].mean(axis=1) for start in starts], axis=1)


COLOURS = "viridis"
"""Perceptually uniform, also to readers who cannot tell red from green, and without a grey."""
EMPTY = "#d9d9d9"
BAR = 1.05
"""Inches on the right for the colour bar with its numbers."""
BAR_HEIGHT = 1.14
"""Inches: the least height of the colour bar, which its label needs."""


def content(logs: Sequence[Log]) -> Content:
    """The mean over the seeds of each arm, a row for each cell."""
    found = [(log, rows) for log in logs if len(rows := layer_rows(log))]
    why = f"{NAMES}NN is null or absent: it does not apply, or was not logged"
    excluded = notes.without_values(logs, found, why)
    remarks = notes.not_finite(found, "step", f"{NAMES}NN")
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
        figure, places = framed(len(arms), [empty], lines, TITLE, grid, paper)
        counts = [int(table.loc[table["arm"] == arm, "n"].iloc[0]) for arm, _ in arms]
        titles = lettered(f"{arm} (N = {count})" for (arm, _), count in zip(arms, counts, strict=True))
        for ax, (arm, _), text in zip(places, arms, titles, strict=True):
            axes.title(ax, text)
            _draw_arm(ax, table[table["arm"] == arm], scale)
        for ax in places[:: grid.columns]:
            ax.set_ylabel("layer")
        for ax in places[-grid.columns :]:
            ax.set_xlabel(axes.X_LABELS["step"])
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


def _draw_bar(figure: Figure, places: Sequence[Axes], scale: PowerNorm) -> None:
    """Beside the panels, as high as all rows together, but with room for its label; 2.2 inches at most."""
    boxes = [ax.get_position() for ax in places]
    top, left = max(box.y1 for box in boxes), max(box.x1 for box in boxes) + 0.15 / figure.get_figwidth()
    inches = float(np.clip((top - min(box.y0 for box in boxes)) * figure.get_figheight(), BAR_HEIGHT, 2.2))
    height = inches / figure.get_figheight()
    bar = figure.colorbar(
        ScalarMappable(scale, COLOURS),
        cax=figure.add_axes((left, top - height, 0.1 / figure.get_figwidth(), height), label="<colorbar>"),
        ticks=MaxNLocator(4),
        format="%g",
    )
    bar.set_label("share of expert slots\nthat one update changes", fontsize=6.5)  # the notes have the metric's name
    bar.minorticks_off()


FIGURE = StudyFigure(TITLE, {("step", NAMES)}, content, draw)
