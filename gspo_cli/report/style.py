"""How every figure looks: one matplotlib style, one colour an algorithm.

Not covered: the Okabe-Ito palette has eight colours; the last four algorithms take colours of Paul Tol's muted scheme.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import matplotlib as mpl

COLOURS = {
    "grpo": "#0072B2",
    "gspo": "#D55E00",
    "gspo_token": "#CC79A7",
    "sapo": "#009E73",
    "dapo": "#56B4E9",
    "dr_grpo": "#E69F00",
    "cispo": "#000000",
    "gmpo": "#F0E442",
    "luspo": "#999933",
    "minirl": "#332288",
    "ppo": "#882255",
    "reinforce": "#999999",
}
"""Fixed for all figures. To add an algorithm, add a colour that no other has."""

OTHER = "#666666"
"""For an algorithm that is not in the table; line styles tell several apart."""

DASHES = ("--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 3)))
"""Line styles of arms that are not plain algorithms."""

MARKERS = ("^", "s", "D", "v", "P", "X")
"""Marks of their points."""

Dash = str | tuple[int, tuple[int, ...]]
Look = TypeVar("Look")

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # where it stands anyway; else every drawing measures all tick labels first
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "ytick.minor.width": 0.4,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "figure.facecolor": "white",
    # a font name in the file would leave the look to the reader's machine
    "svg.fonttype": "path",
    # without a salt every run writes other element ids
    "svg.hashsalt": "gspo",
    "path.simplify": True,
}
"""What differs from matplotlib's defaults."""


@contextmanager
def applied() -> Iterator[None]:
    """Our style on matplotlib's defaults, whatever the user's own settings are; for drawing and for saving."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(RC)
        yield


def colour(algorithm: str) -> str:
    """The algorithm's colour in every figure."""
    return COLOURS.get(algorithm, OTHER)


def line_styles(arms: Iterable[tuple[str, str]]) -> dict[str, Dash]:
    """Line style of each (arm, algorithm): solid for an arm that is its algorithm, others dashed, apart by colour."""
    return _apart(arms, "-", DASHES)


def markers(arms: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Marker of each (arm, algorithm): round for an arm that is its algorithm, others apart by colour."""
    return _apart(arms, "o", MARKERS)


def _apart(arms: Iterable[tuple[str, str]], plain: Look, others: Sequence[Look]) -> dict[str, Look]:
    looks: dict[str, Look] = {}
    used: dict[str, int] = {}
    for arm, algorithm in sorted(arms):
        if arm == algorithm and algorithm in COLOURS:
            looks[arm] = plain
            continue
        index = used.get(colour(algorithm), 0)
        used[colour(algorithm)] = index + 1
        looks[arm] = others[index % len(others)]
    return looks


def arm_order(arm: tuple[str, str]) -> tuple[int, str]:
    """Sort key of (arm, algorithm) in legends: as the colour table, arms of one algorithm by name."""
    names = list(COLOURS)
    return (names.index(arm[1]) if arm[1] in names else len(names), arm[0])
