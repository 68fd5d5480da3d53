"""Figure: how ratio spread and clipping depend on the length of a response."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from gspo_cli.instruments.batch.lengths import MIN_RESPONSES
from gspo_cli.instruments.batch.measure import BatchMeasurements
from gspo_cli.report.figures import axes, style, words
from gspo_cli.report.figures.axes import log_axis, strip_height
from gspo_cli.report.figures.canvas import framed
from gspo_cli.report.figures.style import SCREEN, Paper

title = "Spread of the ratios and clipping, by the length of a response"
TOKEN, SEQUENCE, INDEPENDENT = "token_log_std", "seq_log_std", "independent"
CLIPS = ("grpo", "gspo")
SHOWN = {TOKEN: "grpo", SEQUENCE: "gspo", INDEPENDENT: ""}
"""Series of the spread -> the algorithm whose look it has."""
HEAD = 0.09
"""Share of the y axis above the data, for the numbers of responses."""


def table(measured: BatchMeasurements) -> pd.DataFrame:
    """`y` at mean length `x` of each octave with its `n` responses; panel `spread` in nats (and the line of independent
    tokens, pooled token_log_std / sqrt(x)), panel `clip` the share of clipped tokens."""
    rows = []
    for part in measured.buckets:
        spread = part.spread
        head = {"x": spread.mean_length, "n": spread.responses}
        rows += [
            {"panel": "spread", "series": TOKEN, "y": spread.token_log_std, **head},
            {"panel": "spread", "series": SEQUENCE, "y": spread.seq_log_std, **head},
            *(
                {"panel": "clip", "series": name, "y": part.algorithms[name]["clip_token_frac"], **head}
                for name in CLIPS
            ),
        ]
        if measured.spread.token_log_std is not None:
            y = measured.spread.token_log_std / spread.mean_length**0.5
            rows.append({"panel": "spread", "series": INDEPENDENT, "y": y, **head})
    found = pd.DataFrame(rows, columns=["panel", "series", "x", "y", "n"]).astype({"y": float})
    return found.sort_values(["panel", "series", "x"], ascending=[False, True, True], ignore_index=True)


def draw(measured: BatchMeasurements, table: pd.DataFrame, lines: list[str], paper: Paper = SCREEN) -> Figure:
    """Spread and clips, both axes logarithmic; a bucket with few responses is a hollow dot."""
    with style.applied():
        figure, (left, right) = framed(2, [_handles()], lines, title, paper=paper)
        spread, clip = (table[table["panel"] == panel] for panel in ("spread", "clip"))
        fitted = "" if measured.slope is None else f"; slope of log s: {measured.slope:.2f}"
        axes.title(left, f"(a) ratio spread{fitted}")
        left.set_ylabel("standard deviation [nat]")
        _draw_panel(left, spread, SHOWN)
        axes.title(right, "(b) clipped tokens at the published bands")
        words.label_y(right, "clip/token_frac")
        _draw_panel(right, clip, {name: name for name in CLIPS})
    return figure


def _draw_panel(ax: Axes, rows: pd.DataFrame, shown: dict[str, str]) -> None:
    floor = log_axis(ax, "y", rows["y"].to_numpy(np.float64))
    bottom, top = ax.get_ylim()
    ax.set_ylim(top=top * (top / bottom) ** HEAD)
    for index, (series, algorithm) in enumerate(shown.items()):
        colour, line = style.colour(algorithm), rows[rows["series"] == series]
        x, y, n = (line[name].to_numpy(np.float64) for name in ("x", "y", "n"))
        heights = np.where(y > 0, y, np.where(y == 0, strip_height(floor, bottom, index, len(shown)), np.nan))
        if series == INDEPENDENT:
            ax.plot(x, np.where(y > 0, y, np.nan), color=colour, linestyle=(0, (4, 2)), linewidth=1.0, zorder=2)
            continue
        ax.plot(x, np.where(y > 0, y, np.nan), color=colour, linewidth=1.4, zorder=3)
        for hollow in (False, True):
            there = (n < MIN_RESPONSES) == hollow
            ax.plot(x[there], heights[there], style.MARKERS[algorithm], color=colour, markersize=4, zorder=4,
                    clip_on=False, markerfacecolor="white" if hollow else colour)  # fmt: skip
    _length_axis(ax, rows)


def _length_axis(ax: Axes, rows: pd.DataFrame) -> None:
    """Powers of two, the octaves' edges, and under the title how many responses each octave has."""
    low, high = np.floor(np.log2(rows["x"].min())), np.ceil(np.log2(rows["x"].max()) + 1e-9)
    ax.set_xscale("log", base=2)
    ax.set_xlim(2.0**low, 2.0 ** max(high, low + 1))
    ax.xaxis.set_major_locator(FixedLocator([2.0**k for k in range(int(low), int(max(high, low + 1)) + 1)]))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("response length [token]")
    for x, n in rows[["x", "n"]].drop_duplicates().itertuples(index=False):
        ax.text(x, 0.98, f"{n}", transform=ax.get_xaxis_transform(), fontsize=6, color="#666666", ha="center", va="top")


def _handles() -> list[Line2D | Patch]:
    return [
        Line2D([], [], color=style.colour("grpo"), marker=style.MARKERS["grpo"], markersize=4,
               label="log w of tokens; GRPO"),
        Line2D([], [], color=style.colour("gspo"), marker=style.MARKERS["gspo"], markersize=4,
               label="log s of responses; GSPO"),
        Line2D([], [], color=style.OTHER, linestyle=(0, (4, 2)), label="independent tokens: slope -1/2"),
    ]  # fmt: skip


def notes(measured: BatchMeasurements) -> list[str]:
    """How to read the figure."""
    lines = [
        "One point an octave of lengths, at its mean length; small numbers at the top: its responses (hollow dots: "
        f"fewer than {MIN_RESPONSES}). The dashed line is sd(log w) of all tokens over the root of the length.",
        "Length goes with difficulty, so this is no effect of length alone.",
    ]
    shares = [measured.spread.token_log_std, measured.spread.seq_log_std]
    clips = [part.algorithms[name]["clip_token_frac"] for part in measured.buckets for name in CLIPS]
    if 0 in [*shares, *clips]:
        lines.append("A logarithmic axis has no 0: values that are exactly 0 are the dots in the grey strip.")
    return lines
