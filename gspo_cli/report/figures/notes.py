"""What is printed under a figure and kept in its side file: definitions, what was left out, how to read it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gspo_cli.report.figures.axes import bands_are_cut
from gspo_cli.report.figures.curves import MIN_SEEDS, Panel
from gspo_cli.report.runs.folders import StoredRun, Study
from gspo_cli.report.runs.log import Log
from gspo_cli.runlog import schema

NO_LOG = "no metrics.jsonl"
CLIP = "clip/token_frac"


def captions(table: pd.DataFrame, panels: Sequence[Panel]) -> list[str]:
    """What the reader must know to read the figure."""
    lines = [f"{name}: {schema.metric(name).definition}." for name in dict.fromkeys(p.metric for p in panels)]
    rows = [(panel, table[table["panel"] == panel.name]) for panel in panels]
    if any(panel.log and (r["y"] == 0).any() for panel, r in rows):
        lines.append("A logarithmic axis has no 0: values that are exactly 0 are the marks in the grey strip.")
    if any(panel.kind == "eval" for panel in panels):
        lines.append("Dots are evaluations, lines only join them.")
    first = [r.loc[r["x"] == 1, "y"].dropna() for panel, r in rows if panel.metric == CLIP and panel.x == "mini_batch"]
    if any(len(y) and (y == 0).all() for y in first):
        lines.append("Mini-batch 1 is 0 by construction: the policy has not been updated since it sampled.")
    if any(bands_are_cut(panel, r) for panel, r in rows):
        lines.append("Bands are cut where a share, or the axis, ends; the csv has their ends.")
    means = table[table["series"] == "mean"]
    if few := sorted(set(means.loc[means["n"] < MIN_SEEDS, "arm"])):
        lines.append(f"No band with fewer than {MIN_SEEDS} seeds: {', '.join(few)}.")
    if not len(means):
        return [*lines, "No smoothing."]
    return [*lines, "No smoothing. A mean stands only where all seeds of the arm have a value."]


def differences(baseline: str) -> str:
    """What a panel of paired differences shows."""
    return f"Differences: each arm minus {baseline}, seed by seed; pairs with a collapsed run included."


def without_log(study: Study, logs: Sequence[Log]) -> list[dict[str, Any]]:
    """The runs that have no log yet or do not count, as entries of the side file's `excluded`."""
    read = {log.run.folder for log in logs}
    left_out = [run for run in study.runs if run.folder not in read]
    return [entry(run, None, NO_LOG if run.invalid is None else f"invalidated: {run.invalid}") for run in left_out]


def without_values(
    logs: Sequence[Log], found: Sequence[tuple[Log, Any]], why: str, panel: str | None = None
) -> list[dict[str, Any]]:
    """The runs that show nothing in a figure, or in one panel of it, likewise."""
    shown = {log.run.folder for log, _ in found}
    return [entry(log.run, panel, why) for log in logs if log.run.folder not in shown]


def entry(run: StoredRun, panel: str | None, why: str) -> dict[str, Any]:
    """A run that a figure, or one panel of it, does not show."""
    return {"run": run.folder.name, "arm": run.arm, "seed": run.seed, "panel": panel, "reason": why}


def excluded_notes(excluded: Sequence[dict[str, Any]]) -> list[str]:
    """One note a reason and panel, naming arms and seeds."""
    seeds: dict[tuple[str, str], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for item in excluded:
        place = f" of the panel of {item['panel'].replace('_', ' ')}" if item["panel"] else ""
        seeds[place, item["reason"]][item["arm"]].add(item["seed"])
    notes = []
    for (place, why), arms in seeds.items():
        who = [
            f"{arm} ({'seeds' if len(mine) > 1 else 'seed'} {', '.join(map(str, sorted(mine)))})"
            for arm, mine in arms.items()
        ]
        notes.append(f"Left out{place}: {'; '.join(who)}. Reason: {why}.")
    return notes


def not_finite(found: Iterable[tuple[Log, pd.DataFrame]], kind: str, metric: str) -> list[str]:
    """The notes on values of a metric that are nan or infinite, among the rows of each run."""
    bad = [(log.run.folder.name, int((~np.isfinite(rows["value"])).sum())) for log, rows in found]
    return [
        f"{name}: {count} values of {metric} ({kind} lines) are not finite, left out." for name, count in bad if count
    ]
