"""Figures made of curves: reward, clip fractions, volatility, Routing Replay, benchmark scores."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from gspo_cli.report.figures import notes, style
from gspo_cli.report.figures.canvas import draw_figure
from gspo_cli.report.figures.curves import TOKENS, Content, Panel, curve, panel_table
from gspo_cli.report.figures.style import SCREEN, Paper
from gspo_cli.report.runs.folders import StoredRun
from gspo_cli.report.runs.log import Log
from gspo_cli.report.runs.metric_spec import KEPT_ONLY, REWARD
from gspo_cli.report.runs.reader import corrupt
from gspo_cli.runlog.strict_json import read_object


def score_panels(metric: str) -> dict[str, Panel]:
    """The two panels of one score: the second is the paper's Figure 1."""
    return {
        "against rollout batches": Panel("steps", metric, "eval", "step"),
        "against generated tokens": Panel("tokens", metric, "eval", "tokens"),
    }


def figure_name(metric: str) -> str:
    """`score-aime24-avg32` of `aime24/avg@32`."""
    return "score-" + metric.replace("/", "-").replace("@", "")


def summaries(run: StoredRun) -> list[dict[str, Any]]:
    """The run's evaluated checkpoints: `metric`, `step`, `value`, `standard_error`, `num_problems` and the summary
    file's hash.

    Errors: GspoError for a summary that is no such file.
    """
    found = []
    for path in sorted(run.folder.glob("eval/*/step-*/summary.json")):
        about, step = read_object(path), path.parent.name.removeprefix("step-")
        try:
            entry = {
                "run": run.folder.name,
                "metric": str(about["metric"]),
                "step": int(step),
                "value": about["average"] if about["average"] is None else float(about["average"]),
                "standard_error": about["standard_error"],
                "num_problems": int(about["num_problems"]),
            }
        except (KeyError, TypeError, ValueError) as error:
            raise corrupt(str(path), f"no summary of an evaluation: {error!r}") from error
        if entry["value"] is not None:
            found.append(entry | {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
    return found


def with_summaries(log: Log, found: list[dict[str, Any]]) -> Log:
    """The log with evaluations as further `eval` rows; a logged score of the same step and name gives way to them."""
    if not found:
        return log
    rows = pd.DataFrame(found)[["step", "metric", "value"]].assign(
        kind="eval", seq=-1, mini_batch=pd.array([pd.NA] * len(found), dtype="Int64"), count=float("nan")
    )
    frame = log.frame.astype({"kind": object, "metric": object})
    replaced = {(entry["step"], entry["metric"]) for entry in found}
    twice = [
        kind == "eval" and (step, metric) in replaced
        for kind, step, metric in zip(frame["kind"], frame["step"], frame["metric"], strict=True)
    ]
    frame = frame[~pd.Series(twice, frame.index, dtype=bool)]
    return replace(log, frame=pd.concat([frame, rows[frame.columns]], ignore_index=True))


@dataclass(frozen=True, slots=True)
class LineFigure:
    """A figure that shows every run in every panel."""

    panels: Mapping[str, Panel]
    """By their titles; they are lettered a, b, ..."""
    title: str
    """Of the whole figure."""

    def wanted(self) -> Collection[tuple[str, str]]:
        """The panels' metrics, and the tokens."""
        shown = {(panel.kind, panel.metric) for panel in self.panels.values()}
        return {("rollout", TOKENS), *shown, *({("rollout", KEPT_ONLY)} if ("rollout", REWARD) in shown else ())}

    def content(self, logs: Sequence[Log]) -> Content:
        """The curves of all runs."""
        return collect([(panel, logs) for panel in self.panels.values()])

    def draw(self, table: pd.DataFrame, lines: Sequence[str], paper: Paper = SCREEN) -> Figure:
        """Panels side by side; one of differences only where the table has any."""
        drawn = set(table["panel"])
        panels = {name: panel for name, panel in self.panels.items() if not panel.paired or panel.name in drawn}
        return draw_figure(table, panels, lines, self.title, paper)


def collect(shown: Iterable[tuple[Panel, Sequence[Log]]]) -> Content:
    """The curves of each panel's own runs."""
    tables, panels, remarks, excluded = [], [], [], []
    for panel, given in shown:
        logs = [log for log in given if not (panel.metric == REWARD and _covers_kept_only(log))]
        found = [(log, c) for log in logs if (c := curve(log, panel)) is not None]
        if panel.paired:  # the same runs as in the panel of their curves, which says what is left out
            panels.append(panel)
            tables.append(panel_table(panel, found))
            continue
        excluded += [notes.entry(log.run, panel.name, notes.KEPT_GROUPS) for log in given if log not in logs]
        panels.append(panel)
        tables.append(panel_table(panel, found))
        remarks += [notes.not_finite(log, panel.metric, panel.kind, c.non_finite) for log, c in found if c.non_finite]
        excluded += notes.without_values(panel, logs, found)
    table = pd.concat([t for t in tables if len(t)] or tables, ignore_index=True)
    panels = [panel for panel in panels if not panel.paired or (table["panel"] == panel.name).any()]
    metrics = dict.fromkeys(panel.metric for panel in panels)
    absent = f"no run has a value of {' or '.join(metrics)}"
    captions = notes.captions(table, panels)
    if any(panel.paired for panel in panels):
        captions.insert(1, notes.differences(given[0].run.baseline))
    return Content(table, captions, remarks, excluded, absent)


def _covers_kept_only(log: Log) -> bool:
    """Whether `reward/mean` leaves out the groups that dynamic sampling put aside, as earlier versions logged it."""
    return log.run.dynamic_sampling and not (log.frame["metric"] == KEPT_ONLY).any()


title = "With and without Routing Replay"
AGREE = "replay/natural_agree_frac"


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
    return {("rollout", REWARD), ("rollout", KEPT_ONLY), ("step", AGREE)}


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
    figure = draw_figure(table, panels(algorithms), lines, title, paper)
    for column in (figure.axes[::2], figure.axes[1::2]):
        lows, highs = zip(*(ax.get_ylim() for ax in column), strict=True)
        for ax in column:
            ax.set_ylim(min(lows), max(highs))
    return figure
