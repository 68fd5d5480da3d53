"""Figures made of curves: one entry a panel, every arm in each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from gspo_cli.report import notes
from gspo_cli.report.canvas import draw_figure
from gspo_cli.report.content import Content
from gspo_cli.report.curves import TOKENS, Panel, curve, panel_table
from gspo_cli.report.load import Log
from gspo_cli.report.paper import SCREEN, Paper


@dataclass(frozen=True, slots=True)
class LineFigure:
    """A figure that shows every run in every panel."""

    panels: Mapping[str, Panel]
    """By their titles; they are lettered a, b, ..."""

    def wanted(self) -> Collection[tuple[str, str]]:
        """The panels' metrics, and the tokens."""
        return {("rollout", TOKENS), *((panel.kind, panel.metric) for panel in self.panels.values())}

    def content(self, logs: Sequence[Log]) -> Content:
        """The curves of all runs."""
        return collect([(panel, logs) for panel in self.panels.values()])

    def draw(self, table: pd.DataFrame, lines: Sequence[str], paper: Paper = SCREEN) -> Figure:
        """Panels side by side."""
        return draw_figure(table, self.panels, lines, paper)


def collect(shown: Iterable[tuple[Panel, Sequence[Log]]]) -> Content:
    """The curves of each panel's own runs."""
    tables, panels, remarks, excluded = [], [], [], []
    for panel, logs in shown:
        found = [(log, c) for log in logs if (c := curve(log, panel)) is not None]
        panels.append(panel)
        tables.append(panel_table(panel, found))
        remarks += notes.non_finite_notes(panel, found)
        excluded += notes.without_values(panel, logs, found)
    table = pd.concat([t for t in tables if len(t)] or tables, ignore_index=True)
    metrics = dict.fromkeys(panel.metric for panel in panels)
    absent = f"no run has a value of {' or '.join(metrics)}"
    return Content(table, notes.captions(table, panels), remarks, excluded, absent)
