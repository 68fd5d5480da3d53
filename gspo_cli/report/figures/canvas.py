"""A whole figure: panels side by side, legends and notes in rows below them, so that nothing covers data."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from string import ascii_lowercase

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gspo_cli.report.figures import axes, style
from gspo_cli.report.figures.curves import BAND, Panel
from gspo_cli.report.figures.style import SCREEN, Paper

PANEL_HEIGHT = 2.2
LEFT, RIGHT, GAP, TOP, X_LABEL = 0.73, 0.2, 0.83, 0.28, 0.55
"""Inches around and between the panels."""
TITLE = 0.24
"""Inches of the figure's title."""
LEGEND_ROW, LEGEND_PAD, NOTE_ROW = 0.142, 0.045, 0.125
"""Inches: a row of a legend, the space under a legend, a line of the notes."""
ENTRY, LETTER = 0.45, 0.065
"""Inches of a legend entry: its line with the space around it, and a letter of its label."""
NOTE_CHARS = 136
"""Characters of a note that fit on a line of a screen's figure."""


@dataclass(frozen=True, slots=True)
class Grid:
    """How the panels of a figure stand, row by row."""

    columns: int
    """In a row, if the paper has room for as many."""
    panel_height: float = PANEL_HEIGHT
    """Inches, of the panel itself."""
    right: float = RIGHT
    """Inches free on the right of the panels."""
    under: float = X_LABEL
    """Inches under each panel; the lowest row has room for the axis label whatever this says."""


def draw_figure(
    table: pd.DataFrame, panels: Mapping[str, Panel], notes: Sequence[str], title: str, paper: Paper = SCREEN
) -> Figure:
    """The figure of a table (columns: `curves.TABLE`): panels by their titles; `notes` are printed under the legend."""
    looks = style.looks(axes.arms_of(table))
    legends: list[Sequence[Line2D | Patch]] = [arm_handles(table, looks), _series_handles(table)]
    with style.applied():
        figure, places = framed(len(panels), legends, notes, title, Grid(2), paper)
        for ax, panel, heading in zip(places, panels.values(), lettered(panels), strict=True):
            axes.draw(ax, panel, table[table["panel"] == panel.name], heading, looks)
    return figure


def framed(
    num_panels: int,
    legends: Sequence[Sequence[Line2D | Patch]],
    notes: Sequence[str],
    title: str,
    grid: Grid | None = None,
    paper: Paper = SCREEN,
) -> tuple[Figure, list[Axes]]:
    """A figure with empty panels (by default in one row), its title above them, and under them its legends (those that
    have entries) and notes; to be called within `style.applied()`. In a paper the caption has title and notes."""
    grid = grid or Grid(num_panels)
    num_columns, page = min(grid.columns, paper.columns), paper.width
    legends = [entries for entries in legends if entries]
    notes = notes if paper.notes else ()
    above = TITLE if paper.notes else 0.0
    lines = [line for note in notes for line in textwrap.wrap(note, NOTE_CHARS, subsequent_indent="   ")]
    below = sum(_legend_height(entries, page) for entries in legends) + NOTE_ROW * len(lines) + 0.08
    row_height, num_rows = TOP + grid.panel_height + grid.under, -(-num_panels // num_columns)
    height = row_height * num_rows - grid.under + X_LABEL + below + above
    figure = Figure(figsize=(page, height))
    width = (page - LEFT - grid.right - GAP * (num_columns - 1)) / num_columns
    places = []
    for row, column in (divmod(index, num_columns) for index in range(num_panels)):
        left, bottom = LEFT + column * (width + GAP), below + row_height * (num_rows - 1 - row) + X_LABEL
        box = (left / page, bottom / height, width / page, grid.panel_height / height)
        places.append(figure.add_axes(box))
    if above:
        figure.text(LEFT / 2 / page, 1 - 0.07 / height, title, fontsize=9.5, fontweight="bold", va="top")
    y = below
    for entries in legends:
        figure.legend(
            handles=list(entries), loc="upper center", bbox_to_anchor=(0.5, y / height), ncols=_columns(entries, page),
            borderaxespad=0, borderpad=0, handlelength=2.4, columnspacing=1.4, labelspacing=0.35,
        )  # fmt: skip
        y -= _legend_height(entries, page)
    if lines:
        figure.text(
            LEFT / 2 / page, (y - 0.02) / height, "\n".join(lines), fontsize=6.2, color="#444444", va="top",
            linespacing=1.3,
        )  # fmt: skip
    return figure, places


def lettered(titles: Iterable[str]) -> list[str]:
    """Titles of panels as (a), (b), ..."""
    letters = chain(ascii_lowercase, map("".join, product(ascii_lowercase, repeat=2)))
    return [f"({letter}) {title}" for letter, title in zip(letters, titles, strict=False)]


def _columns(entries: Sequence[Line2D | Patch], width: float) -> int:
    """As many as fit beside each other; matplotlib fills a legend column by column."""
    sizes = [ENTRY + LETTER * len(str(entry.get_label())) for entry in entries]
    fits = (n for n in range(len(sizes), 1, -1) if sum(max(part) for part in np.array_split(sizes, n)) <= width)
    return next(fits, 1)


def _legend_height(entries: Sequence[Line2D | Patch], width: float) -> float:
    """Inches."""
    return LEGEND_PAD + LEGEND_ROW * -(-len(entries) // _columns(entries, width))


def arm_handles(table: pd.DataFrame, looks: Mapping[str, style.Look], points: bool = False) -> list[Line2D]:
    """One entry an arm, with its number of seeds; of a figure of points without lines."""
    num_seeds = table.groupby("arm")["seed"].nunique()
    return [
        Line2D([], [], color=look.colour, linestyle="" if points else look.dash, linewidth=1.6,
               **look.mark(4.5 if points else 4.2), label=f"{arm} (N = {num_seeds.get(arm, 0)})")
        for arm, look in looks.items()
    ]  # fmt: skip


def _series_handles(table: pd.DataFrame) -> list[Line2D | Patch]:
    """What thin, thick and pale mean, as far as the figure has them."""
    grey = "#555555"
    if not (table["series"] == "mean").any():
        return []
    entries: list[Line2D | Patch] = [
        Line2D([], [], color=grey, linewidth=0.8, alpha=0.6, label="one seed"),
        Line2D([], [], color=grey, linewidth=1.8, label="mean over seeds"),
    ]
    banded = sorted({int(n) for n in table.loc[table["low"].notna(), "n"]})
    if banded:
        counts = ", ".join(str(n) for n in banded)
        entries.append(Patch(color=grey, alpha=0.25, linewidth=0, label=f"{BAND}, N = {counts}"))
    return entries
