"""Figures made of curves: reward, clip fractions, volatility, benchmark scores."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from gspo_cli.report.figures import notes
from gspo_cli.report.figures.canvas import draw_figure
from gspo_cli.report.figures.curves import TOKENS, Content, Panel, StudyFigure, curve, panel_rows, table_of
from gspo_cli.report.figures.style import Paper
from gspo_cli.report.runs.folders import StoredRun
from gspo_cli.report.runs.log import Log
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
    """The run's evaluated checkpoints: `metric`, `step`, `value`, `standard_error`, `num_problems`, `num_answers`,
    `how` they were sampled and of which data, and the summary file's hash.

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
                "num_answers": int(about["num_answers"]),
                "how": {"sampling": about["sampling"]} | {key: about["data"].get(key) for key in ("limit", "files")},
            }
        except (KeyError, TypeError, ValueError) as error:
            raise corrupt(str(path), f"no summary of an evaluation: {error!r}") from error
        if entry["value"] is not None:
            found.append(entry | {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
    return found


FEWEST = 0.99
"""Share of the answers that has a verdict, at least, where an evaluation is complete."""


def with_summaries(log: Log, found: list[dict[str, Any]]) -> tuple[Log, list[dict[str, Any]], list[tuple[str, str]]]:
    """The log with evaluations as further `eval` rows (a logged score of the same step and name gives way to them),
    those evaluations, and (metric, what is left out).

    Where training and evaluations took different numbers of answers, so different problems, they are not of one curve:
    the greater number stays.
    """
    counts = log.frame[log.frame["kind"] == "eval"].groupby("metric")["count"].max().dropna().to_dict()
    said: list[tuple[str, str]] = []
    for metric in sorted({entry["metric"] for entry in found if entry["metric"] in counts}):
        most, name = max(e["num_answers"] for e in found if e["metric"] == metric), log.run.folder.name
        if counts[metric] < FEWEST * most:
            what = f"scores of {name} in training, of fewer problems than its evaluated checkpoints"
            said.append((metric, f"Not drawn: {what}."))
            log = replace(log, frame=log.frame[(log.frame["kind"] != "eval") | (log.frame["metric"] != metric)])
        most = max(most, int(counts[metric]))
        fewer = [e for e in found if e["metric"] == metric and e["num_answers"] < FEWEST * most]
        if fewer:
            said.append((metric, f"Not drawn: evaluations of {name} of fewer problems than others ({len(fewer)})."))
            found = [entry for entry in found if entry not in fewer]
    if not found:
        return log, found, said
    rows = pd.DataFrame(found)[["step", "metric", "value"]].assign(
        kind="eval", seq=-1, mini_batch=pd.array([pd.NA] * len(found), dtype="Int64"), count=float("nan")
    )
    frame = log.frame.astype({"kind": object, "metric": object})
    both = pd.concat([frame, rows[frame.columns]], ignore_index=True)
    both = both.drop_duplicates(["kind", "step", "mini_batch", "metric"], keep="last")
    return replace(log, frame=both), found, said


def line_figure(title: str, panels: Mapping[str, Panel], said: Sequence[str] = ()) -> StudyFigure:
    """A figure that shows every run in every panel. `panels`: by their titles; they are lettered a, b, ...
    `said`: notes of its own."""

    def content(logs: Sequence[Log]) -> Content:
        found = collect([(panel, logs) for panel in panels.values()])
        return replace(found, remarks=[*said, *found.remarks])

    def draw(table: pd.DataFrame, lines: Sequence[str], paper: Paper) -> Figure:
        drawn = set(table["panel"])  # one of differences only where the table has any
        shown = {name: panel for name, panel in panels.items() if not panel.paired or panel.name in drawn}
        return draw_figure(table, shown, lines, title, paper)

    wanted = {("rollout", TOKENS), *((panel.kind, panel.metric) for panel in panels.values())}
    return StudyFigure(title, wanted, content, draw)


def collect(shown: Sequence[tuple[Panel, Sequence[Log]]]) -> Content:
    """The curves of each panel's own runs."""
    parts: list[dict[str, Any]] = []
    remarks, excluded = [], []
    for panel, logs in shown:
        found = [(log, c) for log in logs if (c := curve(log, panel)) is not None]
        parts += panel_rows(panel, found)
        if not panel.paired:  # else the same runs as in the panel of their curves, which says what is left out
            rows = ((log, log.values(panel.kind, panel.metric)) for log, _ in found)
            remarks += notes.not_finite(rows, panel.kind, panel.metric)
            names = f"{panel.metric} or {TOKENS}" if panel.x == "tokens" else panel.metric
            why = f"{names} is null or absent: it does not apply, or was not logged"
            excluded += notes.without_values(logs, found, why, panel.name)
    table = table_of(parts)
    panels = [panel for panel, _ in shown if not panel.paired or (table["panel"] == panel.name).any()]
    captions = notes.captions(table, panels)
    if any(panel.paired for panel in panels):
        captions.insert(1, notes.differences(shown[0][1][0].run.baseline))
    metrics = dict.fromkeys(panel.metric for panel in panels)
    return Content(table, captions, remarks, excluded, f"no run has a value of {' or '.join(metrics)}")
