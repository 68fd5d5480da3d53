"""How every figure looks: one matplotlib style, one colour and marker per algorithm, sized for a screen or a paper."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import matplotlib as mpl

from gspo_cli.errors import GspoError

Marker = str | tuple[int, int, int]
FIXED: dict[str, tuple[str, Marker]] = {
    "grpo": ("#0072B2", "o"),
    "gspo": ("#D55E00", "s"),
    "gspo_token": ("#CC79A7", "^"),
    "sapo": ("#009E73", "D"),
    "dapo": ("#56B4E9", "v"),
    "dr_grpo": ("#E69F00", "P"),
    "cispo": ("#000000", "X"),
    "gmpo": ("#F0E442", "<"),
    "luspo": ("#999933", ">"),
    "minirl": ("#332288", "p"),
    "ppo": ("#882255", "*"),
    "reinforce": ("#999999", "h"),
    "dppo_tv": ("#117733", "8"),
    "dppo_kl": ("#44AA99", "H"),
    "ipo": ("#6699CC", (5, 0, 36)),
    "vespo": ("#AA4499", (4, 1, 0)),
    "rloo": ("#661100", (4, 1, 45)),
    "reinforce_pp": ("#BBBBBB", (6, 1, 0)),
    "maxrl": ("#EE8866", (3, 1, 0)),
    "aspo": ("#BBCC33", (3, 1, 60)),
    "gepo": ("#DDCC77", (8, 1, 0)),
}
"""Colour and marker of an algorithm in all figures; the markers are for readers who see no colours, and for print in
grey."""
COLOURS = {name: colour for name, (colour, _) in FIXED.items()}
MARKERS = {name: marker for name, (_, marker) in FIXED.items()}
OTHER = "#666666"
OTHER_MARKER: Marker = "d"
"""For every other algorithm, which needs no look of its own; lines and fillings tell several apart."""

DASHES = ("--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 3)))
"""Line styles of arms that are not plain algorithms."""
FILLS = ("none", "left", "top", "right", "bottom", "none")
"""How their marks are filled; where two agree, the line tells them apart."""

Dash = str | tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Look:
    """How an arm looks in every figure: colour and marker are its algorithm's, line and filling its own."""

    colour: str
    dash: Dash
    marker: Marker
    fill: str

    def mark(self, size: float) -> dict[str, Any]:
        """Its marker as arguments of a line; `size` in points."""
        edge = 0.0 if self.fill == "full" else 0.8
        return {"marker": self.marker, "fillstyle": self.fill, "markersize": size, "markeredgewidth": edge}


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
    "pdf.fonttype": 42,  # TrueType, which journals ask for; within the file
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


def looks(arms: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """The look of each (arm, algorithm), in the order given: solid and filled for an arm that is its algorithm, others
    apart from it and from each other."""
    arms, used, found = list(arms), Counter[str](), {}
    for arm, algorithm in sorted(arms):
        own, marker = FIXED.get(algorithm, (OTHER, OTHER_MARKER))
        if arm == algorithm and algorithm in FIXED:
            found[arm] = Look(own, "-", marker, "full")
        else:
            index = used[own] % len(DASHES)
            used[own] += 1
            found[arm] = Look(own, DASHES[index], marker, FILLS[index])
    return {arm: found[arm] for arm, _ in arms}


def arm_order(arm: tuple[str, str]) -> tuple[int, str]:
    """Sort key of (arm, algorithm) in legends: as the colour table, arms of one algorithm by name."""
    names = list(COLOURS)
    return (names.index(arm[1]) if arm[1] in names else len(names), arm[0])


@dataclass(frozen=True, slots=True)
class Paper:
    """Where a figure will stand."""

    ending: str
    """Of its files' names, before the dot."""
    width: float
    """Inches."""
    columns: int
    """Most panels in a row."""
    notes: bool
    """Whether its notes are printed under it."""
    latex: str
    """Environment and width in LaTeX; empty = not for a paper."""


SCREEN = Paper("", 7.0, 2, True, "")
PAPERS = {
    "column": Paper("-column", 3.25, 1, False, "figure,\\columnwidth"),
    "page": Paper("-page", 7.0, 2, False, "figure*,\\textwidth"),
}
"""A column of a two-column paper, and its text width; type has the same size in both."""
FORMATS = ("svg", "png", "pdf")
"""A pdf holds its fonts as text, an svg draws its letters as outlines, so that they look the same everywhere."""

Image = tuple[Paper, str]
ALL: tuple[Image, ...] = tuple(product((SCREEN, *PAPERS.values()), FORMATS))
USUAL: tuple[Image, ...] = ((SCREEN, "svg"), (SCREEN, "png"))


def requested_images(formats: str | None, paper: str | None) -> Sequence[Image]:
    """The images that `--format a,b` and `--paper NAME` mean. Errors: GspoError for a name that is none."""
    if formats is None and paper is None:
        return USUAL
    if paper is not None and paper not in PAPERS:
        raise GspoError(f"no paper {paper!r}", f"there are {', '.join(PAPERS)}", "--paper column, or leave it out")
    names = list(dict.fromkeys(("pdf" if formats is None else formats).split(",")))
    if unknown := [name for name in names if name not in FORMATS]:
        raise GspoError(f"no image format {unknown[0]!r}", f"there are {', '.join(FORMATS)}", "--format svg,png,pdf")
    return [(PAPERS[paper] if paper else SCREEN, name) for name in names]
