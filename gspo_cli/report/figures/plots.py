"""The figures of a study: those of its logs, and benchmark scores."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from gspo_cli import __version__
from gspo_cli.errors import GspoError
from gspo_cli.report.figures import churn, layers, notes, replay, words
from gspo_cli.report.figures.curves import BAND, Panel, StudyFigure
from gspo_cli.report.figures.lines import figure_name, line_figure, score_panels, summaries, with_summaries
from gspo_cli.report.figures.save import csv_bytes, save
from gspo_cli.report.figures.style import USUAL, Image
from gspo_cli.report.runs.folders import Study
from gspo_cli.report.runs.log import PARTS, SCORES, Log, load_log
from gspo_cli.report.runs.pairs import about_run
from gspo_cli.runlog.checksums import add_checksums
from gspo_cli.runlog.fs import refuse_link

FIGURES: dict[str, StudyFigure] = {
    "reward": line_figure(
        "Mean reward",
        {
            "against rollout batches": Panel("steps", "reward/mean", "rollout", "step"),
            "against generated tokens": Panel("tokens", "reward/mean", "rollout", "tokens"),
            "paired differences to the baseline": Panel("differences", "reward/mean", "rollout", "step", paired=True),
        },
    ),
    "clip": line_figure(
        "Share of tokens that the clip leaves without a gradient",
        {
            "pooled over each rollout batch": Panel("steps", "clip/token_frac", "step", "step", log=True),
            "by mini-batch, mean over rollout batches": Panel(
                "mini_batches", "clip/token_frac", "update", "mini_batch", log=True
            ),
        },
    ),
    "volatility": line_figure(
        "Experts that change with an update",
        {
            "before and after one update, on the probe": Panel("steps", "moe/slot_churn_step", "step", "step"),
            "old against current policy, mean over batches": Panel(
                "mini_batches", "moe/slot_churn_probe", "update", "mini_batch"
            ),
        },
    ),
    "volatility_layers": layers.FIGURE,
    "churn_clip": churn.FIGURE,
    "replay": replay.FIGURE,
}
"""To add one, add an entry: panels with curves, whose metrics have `WORDS`, or the figure of a module of its own."""
OF_EXPERTS = ("volatility", "volatility_layers", "churn_clip", "replay")
Drawn = tuple[str, StudyFigure, Sequence[Log], dict[str, Any]]
"""A figure with its name, its logs, and what else its side file says."""


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
    figures: list[Drawn] = [(name, figure, logs, {}) for name, figure in FIGURES.items()]
    return _draw(study, [*figures, *_parts(logs), *_scores(logs)], report, images)


def plot_scores(study: Study) -> PlotResult:
    """The figures of benchmark scores alone. Errors: as `plot`."""
    report = PlotResult()
    return _draw(study, [*_scores(_load(study, report))], report, USUAL)


def rebuilt_csv(study: Study, name: str) -> bytes:
    """The csv of a figure, made again from the study's logs. Errors: GspoError if a log is corrupt."""
    return csv_bytes(FIGURES[name].content(_load(study, PlotResult())).table)


def _parts(logs: list[Log]) -> Iterator[Drawn]:
    """One figure with a panel for each of several rewards, if a run had several."""
    names = sorted({m for log in logs for m in log.frame["metric"].unique() if m.startswith(PARTS[:-1])})
    if names:
        panels = {name.removeprefix(PARTS[:-1]): Panel(name, name, "rollout", "step") for name in names}
        yield "reward_parts", line_figure("Each of several rewards, before its weight", panels), logs, {}


def _scores(logs: list[Log]) -> Iterator[Drawn]:
    """A figure for every score that a run logged or a checkpoint was evaluated for."""
    found = [with_summaries(log, summaries(log.run)) for log in logs]
    logs = [log for log, _, _ in found]
    for metric in sorted({m for log in logs for m in log.frame.loc[log.frame["kind"] == "eval", "metric"]}):
        used = [entry for _, entries, _ in found for entry in entries if entry["metric"] == metric]
        said = [text for _, _, left_out in found for name, text in left_out if name == metric]
        if any(entry["how"] != used[0]["how"] for entry in used):
            said.append("The evaluated checkpoints differ in their sampling or data: `evaluations` in the side file.")
        figure = line_figure(words.score_title(metric), score_panels(metric), said)
        yield figure_name(metric), figure, logs, {"evaluations": used}


def _load(study: Study, report: PlotResult) -> list[Log]:
    runs = [run for run in study.runs if run.invalid is None and (run.folder / "metrics.jsonl").is_file()]
    wanted: dict[str, set[str]] = defaultdict(set, eval={SCORES}, rollout={PARTS})
    for kind, metric in chain.from_iterable(figure.wanted for figure in FIGURES.values()):
        wanted[kind].add(metric)
    logs = [load_log(run, wanted) for run in runs]
    if not any(len(log.frame) for log in logs):
        raise GspoError(
            f"nothing to plot in {study.folder}",
            "no run in it that counts has a log line with a metric of the figures",
            "wait for the first rollout batch, or name another study",
        )
    for log in logs:
        if log.torn_bytes:
            name = log.run.folder.name
            report.notes.append(f"{name}: torn last line of metrics.jsonl ({log.torn_bytes} bytes) ignored")
    return logs


def _draw(study: Study, figures: Sequence[Drawn], report: PlotResult, images: Collection[Image]) -> PlotResult:
    """Each figure; its files or the reason why there is none go into the report, but for those about experts where the
    models have none."""
    refuse_link(study.folder / "figures")
    logged = {str(name) for _, _, logs, _ in figures[:1] for log in logs for name in log.frame["metric"].unique()}
    has_experts = any(name.startswith(("moe/", "replay/")) for name in logged)
    for name, figure, logs, also in figures:
        content = figure.content(logs)
        if not len(content.table):
            if has_experts or name not in OF_EXPERTS:
                report.left_out[name] = content.absent
            continue
        excluded = [*notes.without_log(study, logs), *content.excluded]
        remarks = list(dict.fromkeys([*content.remarks, *notes.excluded_notes(excluded)]))
        report.notes += [f"{name}: {remark}" for remark in remarks]
        lines = [*content.captions, *remarks, *dict.fromkeys(log.run.remark for log in logs if log.run.remark)]
        # no time and no path, so that the same logs give the same bytes anywhere
        side = {
            "figure": name,
            "gspo": __version__,
            "band": BAND if content.has_band else None,
            "smoothing": None,
            "runs": [about_run(log.run, log) for log in logs],
            "excluded": excluded,
            "notes": lines,
        }
        draw = partial(figure.draw, content.table, lines)
        saved = save(study.folder / "figures", name, figure.title, content.table, side | also, draw, images)
        report.titles[name] = figure.title
        report.files[name], report.captions[name] = saved
    add_checksums(study.folder, list(chain.from_iterable(report.files.values())))
    return report
