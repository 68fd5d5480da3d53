"""A logarithmic axis that shows zeros honestly: in a strip of their own below the scale."""

from __future__ import annotations

from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter

from gspo_cli.report.curves import Array

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
