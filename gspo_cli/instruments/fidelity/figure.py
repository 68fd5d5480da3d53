"""Figure: cosine of each arm's gradient to the on-policy gradient, against updates made or noise, with its ceiling."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from gspo_cli.instruments.fidelity.pool import pooled
from gspo_cli.report.figures import axes, style
from gspo_cli.report.figures.canvas import framed, lettered
from gspo_cli.report.figures.style import SCREEN, Paper

TITLE = "How well each arm's gradient points where a fresh on-policy one points"
LABELS = {
    "updates": "optimizer steps since the batch was drawn",
    "noise": "noise on the old log-probabilities [nat per token]",
}
APART = 0.012
"""Distance between the marks of neighbouring arms, in parts of the axis: intervals must not hide each other."""


def draw(found: pd.DataFrame, lines: list[str], paper: Paper = SCREEN) -> Figure:
    """A panel for each value of the axis with fewer values; the other one is x, its values evenly spaced."""
    rows = pooled(found)
    x, panel = ("updates", "noise") if rows["updates"].nunique() >= rows["noise"].nunique() else ("noise", "updates")
    values = sorted(rows[panel].unique())
    arms = axes.arms_of(rows)
    looks = style.looks(arms)
    handles = [
        Line2D([], [], color=look.colour, linestyle=look.dash, label=arm, **look.mark(4)) for arm, look in looks.items()
    ]
    handles.append(Line2D([], [], color="#888888", linestyle=":", label="a fresh on-policy batch"))
    with style.applied():
        figure, places = framed(len(values), [handles], lines, TITLE, paper=paper)
        titles = lettered(
            f"{value:g} {'nat of noise' if panel == 'noise' else 'update' if value == 1 else 'updates'}"
            for value in values
        )
        for ax, value, title in zip(places, values, titles, strict=True):
            axes.title(ax, title)
            _panel(ax, rows[rows[panel] == value], x, looks)
        low = min(0.0, rows["cosine"].min(), rows["low"].min())
        for ax in places:
            ax.set_ylim(max(low, -1) - 0.05, 1.05)  # no cosine lies beyond, though Student's interval may
    return figure


def _panel(ax: Axes, rows: pd.DataFrame, x: str, looks: dict[str, style.Look]) -> None:
    if rows["cosine"].isna().all():
        axes.no_values(ax)
        return
    ticks = sorted(rows[x].unique())
    place = {value: index for index, value in enumerate(ticks)}
    ax.axhline(0, color="#999999", linewidth=0.6, zorder=1)
    for index, (arm, look) in enumerate(looks.items()):
        mine = rows[rows["arm"] == arm].sort_values(x)
        shift = (index - (len(looks) - 1) / 2) * APART * max(1, len(ticks))
        at = mine[x].map(place).to_numpy(float) + shift
        ax.vlines(at, mine["low"], mine["high"], color=look.colour, linewidth=0.9, zorder=2)
        ax.plot(at, mine["cosine"], color=look.colour, linestyle=look.dash, linewidth=1.1, zorder=3, **look.mark(4))
    ceiling = rows.groupby(x)["ceiling"].max().reindex(ticks)
    ax.plot(range(len(ticks)), ceiling, color="#888888", linestyle=":", linewidth=1.0, zorder=2)
    ax.set_xlim(-0.4, len(ticks) - 0.6)
    ax.xaxis.set_major_locator(FixedLocator(range(len(ticks))))
    ax.xaxis.set_major_formatter(FixedFormatter([f"{value:g}" for value in ticks]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(LABELS[x])
    ax.set_ylabel("cosine to the on-policy gradient [1]")
