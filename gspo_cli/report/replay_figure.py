"""Figure: reward with and without Routing Replay, one row an algorithm (after arXiv 2507.18071, Fig. 3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pandas as pd
from matplotlib.figure import Figure

from gspo_cli.report import style
from gspo_cli.report.canvas import draw_figure
from gspo_cli.report.content import Content
from gspo_cli.report.curves import Panel, panel_table
from gspo_cli.report.line_figure import collect
from gspo_cli.report.load import Log
from gspo_cli.report.paper import SCREEN, Paper

REWARD, AGREE = "reward/mean", "replay/natural_agree_frac"


def panels(algorithms: Sequence[str]) -> dict[str, Panel]:
    """Two panels an algorithm, by their titles."""
    found = {}
    for name in algorithms:
        found[f"{name}, with and without replay"] = Panel(f"{name} reward", REWARD, "rollout", "step")
        agree = Panel(f"{name} agreement", AGREE, "step", "step", share_end=1)
        found[f"{name}, natural routing against the record"] = agree
    return found


def compared(logs: Sequence[Log]) -> list[str]:
    """The algorithms with a reward from arms that differ in replay, in the order of legends."""
    settings: dict[str, set[str]] = {}
    for log in logs:
        if ((log.frame["metric"] == REWARD) & (log.frame["kind"] == "rollout")).any():
            settings.setdefault(log.run.algorithm, set()).add(log.run.replay)
    names = [name for name, kinds in settings.items() if len(kinds) > 1]
    return sorted(names, key=lambda name: style.arm_order((name, name)))


def wanted() -> Collection[tuple[str, str]]:
    """Reward, and how often the routers would have chosen the replayed experts themselves."""
    return {("rollout", REWARD), ("step", AGREE)}


def content(logs: Sequence[Log]) -> Content:
    """The arms of the compared algorithms; agreement of those that replay."""
    algorithms = compared(logs)
    if not algorithms:
        table = panel_table(Panel("", REWARD, "rollout", "step"), [])
        return Content(table, [], [], [], "no algorithm has arms that differ in Routing Replay (algo.replay)")
    shown = []
    for name, panel in zip([n for n in algorithms for _ in range(2)], panels(algorithms).values(), strict=True):
        mine = [log for log in logs if log.run.algorithm == name]
        shown.append((panel, [log for log in mine if panel.metric == REWARD or log.run.replay != "none"]))
    found = collect(shown)
    settings = {log.run.arm: log.run.replay for _, mine in shown for log in mine}
    found.captions.insert(0, f"Routing Replay: {', '.join(f'{arm} {kind}' for arm, kind in settings.items())}.")
    return found


def draw(table: pd.DataFrame, lines: Sequence[str], paper: Paper = SCREEN) -> Figure:
    """One row an algorithm, each column on one scale."""
    algorithms = sorted(table["algorithm"].unique(), key=lambda name: style.arm_order((name, name)))
    figure = draw_figure(table, panels(algorithms), lines, paper)
    for column in (figure.axes[::2], figure.axes[1::2]):
        lows, highs = zip(*(ax.get_ylim() for ax in column), strict=True)
        for ax in column:
            ax.set_ylim(min(lows), max(highs))
    return figure
