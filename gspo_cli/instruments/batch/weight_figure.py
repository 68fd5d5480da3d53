"""Figure: what GRPO and GSPO multiply each token's gradient with, in one response. T = response token positions."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from gspo_cli.algorithms.metrics import within_variance
from gspo_cli.instruments.batch.measure import BatchMeasurements
from gspo_cli.report.figures import axes, style
from gspo_cli.report.figures.canvas import framed
from gspo_cli.report.figures.style import SCREEN, Paper

title = "What each token's gradient is multiplied with, in one response"
SHOWN = ("grpo", "gspo")


def chosen(measured: BatchMeasurements) -> int | None:
    """The response with the widest token ratios among those with an advantage; None if none has one."""
    scores = measured.scores
    variance_B = within_variance(scores.log_w_BT, scores.mask_BT)
    active_B = measured.losses["grpo"].advantages_B != 0
    return int(variance_B.where(active_B, -1.0).argmax()) if bool(active_B.any()) else None


def table(measured: BatchMeasurements) -> pd.DataFrame:
    """`weight` and `ratio` (before the clip) of each token `x`, from 1; `weight` in units of the on-policy weight
    A / (N L), so it is keep * ratio."""
    row, scores = chosen(measured), measured.scores
    columns = ["algorithm", "series", "x", "y"]
    if row is None:
        return pd.DataFrame(columns=columns)
    length = int(scores.mask_BT[row].sum())
    ratios = {"grpo": scores.log_w_BT[row, :length].exp(), "gspo": scores.log_s_B[row].exp().expand(length)}
    parts = []
    for name in SHOWN:
        loss = measured.losses[name]
        unit = float(loss.advantages_B[row]) / (float(loss.output.denominator) * length)
        for series, values in (("weight", loss.weight_BT[row, :length] / unit), ("ratio", ratios[name])):
            parts.append(
                pd.DataFrame({"algorithm": name, "series": series, "x": np.arange(1, length + 1), "y": values.numpy()})
            )
    return pd.concat(parts, ignore_index=True)[columns]


def draw(measured: BatchMeasurements, table: pd.DataFrame, lines: list[str], paper: Paper = SCREEN) -> Figure:
    """Steps over the token positions; what the clip took away is a thin line, and a cross below."""
    row = chosen(measured)
    with style.applied():
        figure, (ax,) = framed(1, [_handles(table)], lines, title, paper=paper)
        ax.set_xlabel("token of the response")
        ax.set_ylabel("weight / on-policy weight [1]")
        if row is None:
            ax.text(0.5, 0.5, "no response has an advantage", transform=ax.transAxes, ha="center", color="#666666")
            return figure
        advantage = float(measured.losses["grpo"].advantages_B[row])
        axes.title(ax, f"Widest token ratios of the batch: a response with A = {advantage:+.2f}")
        ax.axhline(1, color="#999999", linewidth=0.6, zorder=1)
        step = -0.05 * float(table["y"].max())
        for index, name in enumerate(SHOWN, start=1):
            _draw_algorithm(ax, name, table[table["algorithm"] == name], index * step)
        ax.set_xlim(0.5, table["x"].max() + 0.5)
        ax.set_ylim(bottom=(len(SHOWN) + 1) * step)
        ax.xaxis.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1))
        ax.grid(False, axis="x")
    return figure


def _draw_algorithm(ax: Axes, name: str, rows: pd.DataFrame, crosses: float) -> None:
    """`crosses` = height of the marks of clipped tokens, below 0 so that no algorithm's hide another's."""
    weight, ratio = (rows.loc[rows["series"] == s, "y"].to_numpy(np.float64) for s in ("weight", "ratio"))
    edges = np.arange(len(weight) + 1) + 0.5
    colour = style.colour(name)
    ax.stairs(weight, edges, linewidth=1.5, zorder=3, color=colour, baseline=None)
    ax.stairs(ratio, edges, linewidth=0.7, linestyle=(0, (2, 1.5)), zorder=2, color=colour, baseline=None)
    gone = np.flatnonzero(weight == 0)
    ax.plot(gone + 1, np.full(len(gone), crosses), "x", color=colour, markersize=4, zorder=4)


def _handles(table: pd.DataFrame) -> list[Line2D | Patch]:
    entries: list[Line2D | Patch] = [
        Line2D([], [], color=style.colour(name), linewidth=1.5, label=f"{name}: dJ/dl") for name in SHOWN
    ]
    entries.append(
        Line2D([], [], color="#555555", linewidth=0.7, linestyle=(0, (2, 1.5)), label="ratio before the clip")
    )
    if ((table["series"] == "weight") & (table["y"] == 0)).any():
        entries.append(Line2D([], [], color="#555555", linestyle="", marker="x", markersize=4, label="clipped"))
    return entries


def notes(measured: BatchMeasurements) -> list[str]:
    """Which response it is, and how to read the figure."""
    lines = [
        "Weight of a token's log-probability gradient over A / (N L), the same for both algorithms on policy: the "
        "token ratio w in GRPO, the sequence ratio s in GSPO, 0 where clipped."
    ]
    row = chosen(measured)
    if row is not None:
        batch = measured.batch
        group, rows = next((group, rows) for group, rows in enumerate(batch.groups, start=1) if row in rows)
        lines.append(
            f"Response {rows.index(row) + 1} of group {group} in the file's order, "
            f"{len(batch.responses[row].token_ids)} tokens:"
            " the largest variance of log w within a response, among responses with an advantage."
        )
    return lines
