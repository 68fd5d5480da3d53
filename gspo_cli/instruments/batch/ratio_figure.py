"""Figure: histograms of the log importance ratios, of tokens and of responses, with the clip band that acts on each.

N = tokens or responses
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.instruments.batch.measure import BatchMeasurements
from gspo_cli.report.figures import axes, style
from gspo_cli.report.figures.canvas import framed
from gspo_cli.report.figures.style import SCREEN, Paper

title = "Importance ratios of the batch, and what the clip ranges discard"
PANELS = {"tokens": "grpo", "responses": "gspo"}
"""Panel -> the algorithm whose ratio and band it shows."""
BINS = 80
TAIL = 5e-4
"""The share of values on each side that may lie beyond the first and last bin; they are counted in those."""


def table(measured: BatchMeasurements) -> pd.DataFrame:
    """Counts `n` of log-ratios from `low` to `high`: all, and those whose gradient the clip makes 0."""
    scores = measured.scores
    ratios = {"tokens": scores.log_w_BT[scores.mask_BT], "responses": scores.log_s_B}
    parts = []
    for panel, algorithm in PANELS.items():
        clipped_BT = measured.losses[algorithm].output.clipped_BT
        assert clipped_BT is not None
        clipped_N = clipped_BT[scores.mask_BT] if panel == "tokens" else clipped_BT[:, 0]
        parts += _histograms(panel, algorithm, ratios[panel], clipped_N)
    return pd.concat(parts, ignore_index=True)


def _histograms(panel: str, algorithm: str, log_ratio_N: Tensor, clipped_N: Tensor) -> list[pd.DataFrame]:
    values, clipped = log_ratio_N.numpy(), clipped_N.numpy()
    low, high = band(algorithm)
    ends = np.quantile(values, [TAIL, 1 - TAIL])
    edges = np.linspace(min(ends[0], 1.25 * low), max(ends[1], 1.25 * high), BINS + 1)
    inside = values.clip(edges[0], edges[-1])
    counts = {"all": np.histogram(inside, edges)[0], "clipped": np.histogram(inside[clipped], edges)[0]}
    return [
        pd.DataFrame({"panel": panel, "algorithm": algorithm, "series": series, "low": edges[:-1], "high": edges[1:],
                      "n": count})
        for series, count in counts.items()
    ]  # fmt: skip


def band(algorithm: str) -> tuple[float, float]:
    """The published clip band as bounds of the log-ratio."""
    low, high = ALGORITHMS[algorithm].Params().clip.log_bounds
    return low, high


def draw(measured: BatchMeasurements, table: pd.DataFrame, lines: list[str], paper: Paper = SCREEN) -> Figure:
    """Both panels; counts on a logarithmic axis, clipped ones in front."""
    with style.applied():
        figure, places = framed(len(PANELS), [_handles()], lines, title, paper=paper)
        for ax, letter, (panel, algorithm) in zip(places, "ab", PANELS.items(), strict=True):
            _draw_panel(ax, algorithm, table[table["panel"] == panel])
            share = _share(measured, algorithm, "clip/token_frac")
            axes.title(ax, f"({letter}) {algorithm.upper()} clips {share} of the tokens")
            ax.set_xlabel(f"log ratio of {panel}, log {'w' if panel == 'tokens' else 's'} [nat]")
            ax.set_ylabel(f"number of {panel}")
    return figure


def _draw_panel(ax: Axes, algorithm: str, rows: pd.DataFrame) -> None:
    low, high = band(algorithm)
    ax.axvspan(low, high, color="#eeeeee", linewidth=0, zorder=0)
    for x in (low, high):
        ax.axvline(x, color="#555555", linestyle=(0, (4, 2)), linewidth=0.7, zorder=3)
    for series, alpha in (("all", 0.35), ("clipped", 1.0)):
        part = rows[rows["series"] == series]
        edges = np.append(part["low"].to_numpy(np.float64), part["high"].iloc[-1])
        ax.stairs(part["n"], edges, fill=True, color=style.colour(algorithm), alpha=alpha, linewidth=0, baseline=0.5)
    ax.set_yscale("log")
    ax.set_ylim(0.5, max(20.0, 2 * float(rows["n"].max())))
    ax.set_xlim(rows["low"].min(), rows["high"].max())
    ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    ax.grid(False, axis="x")


def _share(measured: BatchMeasurements, algorithm: str, name: str) -> str:
    value = measured.losses[algorithm].metrics[name]
    return "n/a" if value is None else f"{100 * value:.3g} %"


def _handles() -> list[Line2D | Patch]:
    grey = "#555555"
    return [
        Patch(color=grey, alpha=0.35, linewidth=0, label="all"),
        Patch(color=grey, linewidth=0, label="clipped: gradient 0"),
        Line2D([], [], color=grey, linestyle=(0, (4, 2)), linewidth=0.7, label="published clip band"),
    ]


def notes(measured: BatchMeasurements) -> list[str]:
    """How to read the figure."""
    edges = {name: " to ".join(f"{x:.2g}" for x in band(name)) for name in PANELS.values()}
    return [
        f"log w = l - o of a token, log s = its mean over a response. Bands in nats: GRPO {edges['grpo']}, GSPO "
        f"{edges['gspo']}. A clip acts above for A > 0, below for A < 0, so only part of what lies outside is "
        "clipped: outside lie "
        f"{' and '.join(_share(measured, name, 'ratio/outside_frac') for name in PANELS.values())} of the tokens.",
        f"The outermost {100 * TAIL:.2g} % on a side may lie beyond the axis, counted in its first and last bin.",
    ]
