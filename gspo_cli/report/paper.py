"""What a figure is drawn for: a screen, or a column or page of a paper, where the caption stands in the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from gspo_cli.errors import GspoError


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


def asked(formats: str | None, paper: str | None) -> Sequence[Image]:
    """The images that `--format a,b` and `--paper NAME` mean.

    Errors: GspoError for a name that is none.
    """
    if formats is None and paper is None:
        return USUAL
    if paper is not None and paper not in PAPERS:
        raise GspoError(f"no paper {paper!r}", f"there are {', '.join(PAPERS)}", "--paper column, or leave it out")
    names = list(dict.fromkeys(("pdf" if formats is None else formats).split(",")))
    if unknown := [name for name in names if name not in FORMATS]:
        raise GspoError(f"no image format {unknown[0]!r}", f"there are {', '.join(FORMATS)}", "--format svg,png,pdf")
    return [(PAPERS[paper] if paper else SCREEN, name) for name in names]
