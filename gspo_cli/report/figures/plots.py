"""The figures of a study: those of its logs, and benchmark scores."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gspo_cli import __version__
from gspo_cli.errors import GspoError
from gspo_cli.report.figures import churn, layers, lines, notes, words
from gspo_cli.report.figures.curves import BAND, Content, Panel, StudyFigure
from gspo_cli.report.figures.lines import LineFigure, figure_name, score_panels, summaries, with_summaries
from gspo_cli.report.figures.save import csv_bytes, save
from gspo_cli.report.figures.style import USUAL, Image
from gspo_cli.report.runs.folders import Study
from gspo_cli.report.runs.log import PARTS, SCORES, Log, load_log
from gspo_cli.report.runs.pairs import about_run
from gspo_cli.runlog.checksums import add_checksums

REWARD = {
    "against rollout batches": Panel("steps", "reward/mean", "rollout", "step"),
    "against generated tokens": Panel("tokens", "reward/mean", "rollout", "tokens"),
    "paired differences to the baseline": Panel("differences", "reward/mean", "rollout", "step", paired=True),
}
CLIP = {
    "pooled over each rollout batch": Panel("steps", "clip/token_frac", "step", "step", log=True),
    "by mini-batch, mean over rollout batches": Panel(
        "mini_batches", "clip/token_frac", "update", "mini_batch", log=True
    ),
}
VOLATILITY = {
    "before and after one update, on the probe": Panel("steps", "moe/slot_churn_step", "step", "step"),
    "old against current policy, mean over batches": Panel(
        "mini_batches", "moe/slot_churn_probe", "update", "mini_batch"
    ),
}

FIGURES: dict[str, StudyFigure] = {
    "reward": LineFigure(REWARD, "Mean reward"),
    "clip": LineFigure(CLIP, "Share of tokens that the clip leaves without a gradient"),
    "volatility": LineFigure(VOLATILITY, "Experts that change with an update"),
    "volatility_layers": layers,
    "churn_clip": churn,
    "replay": lines,
}
"""To add one, add an entry: panels with curves, or a module of its own."""


@dataclass(slots=True)
class PlotResult:
    """What `plot` made of a study."""

    files: dict[str, list[Path]] = field(default_factory=dict)
    """Figure -> its files."""
    titles: dict[str, str] = field(default_factory=dict)
    """Figure -> its title."""
    captions: dict[str, str] = field(default_factory=dict)
    """Figure -> what a reader needs beside it."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Figure -> why there is none."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know of the logs: torn ends, runs without values, values that are not finite."""


def plot(study: Study, images: Collection[Image] = USUAL) -> PlotResult:
    """Draws every figure that the study's logs have values for into `figures/` of its folder, as these images.

    Errors: GspoError if no run has a log, or if one is corrupt.
    """
    report = PlotResult()
    logs = _load(study, report)
    for name, figure in FIGURES.items():
        _plot_one(study, name, figure, logs, report, images)
    _plot_parts(study, logs, report, images)
    _plot_scores(study, logs, report, images)
    return _sealed(study, report)


def plot_scores(study: Study) -> PlotResult:
    """The figures of benchmark scores alone. Errors: as `plot`."""
    report = PlotResult()
    _plot_scores(study, _load(study, report), report)
    return _sealed(study, report)


def rebuilt_csv(study: Study, name: str) -> bytes:
    """The csv of a figure, made again from the study's logs. Errors: GspoError if a log is corrupt."""
    return csv_bytes(FIGURES[name].content(_load(study, PlotResult())).table)


def _sealed(study: Study, report: PlotResult) -> PlotResult:
    add_checksums(study.folder, [path for paths in report.files.values() for path in paths])
    return report


def _plot_parts(study: Study, logs: list[Log], report: PlotResult, images: Collection[Image]) -> None:
    """One figure with a panel for each of several rewards, if a run had several."""
    names = sorted({m for log in logs for m in log.frame["metric"].unique() if m.startswith(PARTS[:-1])})
    if names:
        panels = {name.removeprefix(PARTS[:-1]): Panel(name, name, "rollout", "step") for name in names}
        figure = LineFigure(panels, "Each of several rewards, before its weight")
        _plot_one(study, "reward_parts", figure, logs, report, images)


def _plot_scores(study: Study, logs: list[Log], report: PlotResult, images: Collection[Image] = USUAL) -> None:
    """A figure for every score that a run logged or a checkpoint was evaluated for."""
    evaluated = {log.run.folder: summaries(log.run) for log in logs}
    logs = [with_summaries(log, evaluated[log.run.folder]) for log in logs]
    for metric in sorted({m for log in logs for m in log.frame.loc[log.frame["kind"] == "eval", "metric"]}):
        used = {"evaluations": [entry for found in evaluated.values() for entry in found if entry["metric"] == metric]}
        figure = LineFigure(score_panels(metric), words.score_title(metric))
        _plot_one(study, figure_name(metric), figure, logs, report, images, used)


def _wanted() -> dict[str, set[str]]:
    """Everything the figures show, by kind of line."""
    wanted: dict[str, set[str]] = defaultdict(set, eval={SCORES}, rollout={PARTS})
    for figure in FIGURES.values():
        for kind, metric in figure.wanted():
            wanted[kind].add(metric)
    return wanted


def _load(study: Study, report: PlotResult) -> list[Log]:
    runs, wanted = [run for run in study.runs if (run.folder / "metrics.jsonl").is_file()], _wanted()
    # threads: most of the time is spent in Arrow and sha256, outside the interpreter's lock
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        logs = list(pool.map(lambda run: load_log(run, wanted, counts=False), runs))
    if not any(len(log.frame) for log in logs):
        raise GspoError(
            f"nothing to plot in {study.folder}",
            "no run in it has a log line with a metric of the figures",
            "wait for the first rollout batch, or name another study",
        )
    for log in logs:
        if log.torn_bytes:
            name = log.run.folder.name
            report.notes.append(f"{name}: torn last line of metrics.jsonl ({log.torn_bytes} bytes) ignored")
    return logs


def _plot_one(
    study: Study,
    name: str,
    figure: StudyFigure,
    logs: list[Log],
    report: PlotResult,
    images: Collection[Image],
    also: dict[str, Any] | None = None,
) -> None:
    """One figure; its files or the reason why there is none go into the report."""
    content = figure.content(logs)
    if not len(content.table):
        report.left_out[name] = content.absent
        return
    excluded = [*notes.without_log(study, logs), *content.excluded]
    remarks = list(dict.fromkeys([*content.remarks, *notes.excluded_notes(excluded)]))
    report.notes += [f"{name}: {remark}" for remark in remarks]
    synthetic = dict.fromkeys(log.run.synthetic for log in logs if log.run.synthetic)
    lines = [*content.captions, *remarks, *synthetic]
    side = _side_file(name, logs, content, excluded, lines) | (also or {})
    draw = partial(figure.draw, content.table, lines)
    saved = save(study.folder / "figures", name, figure.title, content.table, side, draw, images)
    report.titles[name] = figure.title
    report.files[name], report.captions[name] = saved


def _side_file(
    name: str, logs: list[Log], content: Content, excluded: list[dict[str, Any]], lines: list[str]
) -> dict[str, Any]:
    """What the figure was made of; no time and no path, so that the same logs give the same bytes anywhere."""
    runs = [
        about_run(log.run, {"bytes": log.num_bytes, "sha256": log.sha256, "torn_bytes": log.torn_bytes}) for log in logs
    ]
    return {
        "figure": name,
        "gspo": __version__,
        "band": BAND if content.has_band else None,
        "smoothing": None,
        "runs": runs,
        "excluded": excluded,
        "notes": lines,
    }
