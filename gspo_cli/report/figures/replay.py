"""Figure: the reward with and without Routing Replay, and how often the routers agree with the record."""

from collections.abc import Iterable, Sequence

import pandas as pd
from matplotlib.figure import Figure

from gspo_cli.report.figures import style
from gspo_cli.report.figures.canvas import draw_figure
from gspo_cli.report.figures.curves import Content, Panel, StudyFigure, table_of
from gspo_cli.report.figures.lines import collect
from gspo_cli.report.figures.style import Paper
from gspo_cli.report.runs.log import Log
from gspo_cli.report.runs.metric_spec import REWARD

TITLE = "With and without Routing Replay"
AGREE = "replay/natural_agree_frac"


def panels(algorithm: str) -> dict[str, Panel]:
    """An algorithm's two, by their titles."""
    return {
        f"{algorithm}, with and without replay": Panel(f"{algorithm} reward", REWARD, "rollout", "step"),
        f"{algorithm}, natural routing against the record": Panel(
            f"{algorithm} agreement", AGREE, "step", "step", share_end=1
        ),
    }


def compared(logs: Sequence[Log]) -> list[str]:
    """The algorithms with a reward from arms that differ in replay, in the order of legends."""
    settings: dict[str, set[str]] = {}
    for log in logs:
        if len(log.values("rollout", REWARD)):
            settings.setdefault(log.run.algorithm, set()).add(log.run.replay)
    return _in_order(name for name, kinds in settings.items() if len(kinds) > 1)


def _in_order(algorithms: Iterable[str]) -> list[str]:
    return sorted(algorithms, key=lambda name: style.arm_order((name, name)))


def content(logs: Sequence[Log]) -> Content:
    """The arms of the compared algorithms; agreement of those that replay."""
    shown = []
    for name in compared(logs):
        mine = [log for log in logs if log.run.algorithm == name]
        reward, agreement = panels(name).values()
        shown += [(reward, mine), (agreement, [log for log in mine if log.run.replay != "none"])]
    if not shown:
        absent = "no algorithm has arms that differ in Routing Replay (algo.replay)"
        return Content(table_of([]), [], [], [], absent)
    found = collect(shown)
    settings = {log.run.arm: log.run.replay for _, mine in shown for log in mine}
    found.captions.insert(0, f"Routing Replay: {', '.join(f'{arm} {kind}' for arm, kind in settings.items())}.")
    return found


def draw(table: pd.DataFrame, lines: Sequence[str], paper: Paper) -> Figure:
    """One row an algorithm, each column on one scale."""
    by_title = {
        title: panel for name in _in_order(table["algorithm"].unique()) for title, panel in panels(name).items()
    }
    figure = draw_figure(table, by_title, lines, TITLE, paper)
    for column in (figure.axes[::2], figure.axes[1::2]):
        lows, highs = zip(*(ax.get_ylim() for ax in column), strict=True)
        for ax in column:
            ax.set_ylim(min(lows), max(highs))
    return figure


FIGURE = StudyFigure(TITLE, {("rollout", REWARD), ("step", AGREE)}, content, draw)
