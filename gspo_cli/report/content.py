"""What every figure of a study gives: the metrics it wants, its content, its drawing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pandas as pd
from matplotlib.figure import Figure

from gspo_cli.report.load import Log
from gspo_cli.report.paper import SCREEN, Paper


@dataclass(frozen=True, slots=True)
class Content:
    """What a figure shows and must say."""

    table: pd.DataFrame
    """Its csv, from which alone it is drawn; empty = there is no figure."""
    captions: list[str]
    """How to read it."""
    remarks: list[str]
    """What a reader should know of the logs."""
    excluded: list[dict[str, Any]]
    """The runs that are not in it, as `notes.entry` makes them."""
    absent: str
    """Why there is no figure, if there is none."""

    @property
    def has_band(self) -> bool:
        """Whether it shows an interval."""
        return "low" in self.table and bool(self.table["low"].notna().any())


class StudyFigure(Protocol):
    """A figure of a study; a module or an object."""

    def wanted(self) -> Collection[tuple[str, str]]:
        """(kind of line, metric) of all that it reads; a metric may end in `/layer_`."""

    def content(self, logs: Sequence[Log]) -> Content:
        """What it shows of these logs."""

    def draw(self, table: pd.DataFrame, lines: Sequence[str], paper: Paper = SCREEN) -> Figure:
        """The figure of a table, with the notes under it where the paper wants them."""
