"""Figure: expert volatility against the share of clipped tokens, one point a rollout batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gspo_cli.report.figures import axes, notes, style, words
from gspo_cli.report.figures.axes import log_axis, strip_height
from gspo_cli.report.figures.canvas import Grid, framed
from gspo_cli.report.figures.curves import Array, Content
from gspo_cli.report.figures.style import SCREEN, Paper
from gspo_cli.report.runs.log import Log
from gspo_cli.runlog import schema

title = "Experts that change against clipped tokens"
CLIP, CHURN = "clip/token_frac", "moe/slot_churn_step"
MIN_POINTS = 10
"""Below, a rank correlation says next to nothing."""
MANY = 3000
"""Points from which they are small, and in the svg one image."""
TURNS = 10
TABLE = ["arm", "algorithm", "seed", "step", "x", "y"]
"""Columns of the table: `x` = clipped share, `y` = churn, of one `step` line."""


def wanted() -> Collection[tuple[str, str]]:
    """Both of the `step` line."""
    return {("step", CLIP), ("step", CHURN)}


def points(log: Log) -> pd.DataFrame:
    """The rollout batches of a run that have a finite value of both."""
    rows = log.frame[(log.frame["kind"] == "step") & log.frame["metric"].isin([CLIP, CHURN])]
    both = rows[np.isfinite(rows["value"])].pivot(index="step", columns="metric", values="value")
    both = both.reindex(columns=[CLIP, CHURN]).dropna()
    about = {"arm": log.run.arm, "algorithm": log.run.algorithm, "seed": log.run.seed}
    return pd.DataFrame({**about, "step": both.index, "x": both[CLIP].array, "y": both[CHURN].array})[TABLE]


def content(logs: Sequence[Log]) -> Content:
    """One row a point."""
    found = [(log, rows) for log in logs if len(rows := points(log))]
    shown = {log.run.folder for log, _ in found}
    why = f"no rollout batch has both {CLIP} and {CHURN}"
    excluded = [notes.entry(log.run, None, why) for log in logs if log.run.folder not in shown]
    bad = [(log, metric, _num_bad(log, metric)) for log in logs for metric in (CLIP, CHURN)]
    remarks = [notes.not_finite(log, metric, "step", count) for log, metric, count in bad if count]
    table = pd.concat([rows for _, rows in found] or [pd.DataFrame(columns=TABLE)], ignore_index=True)
    return Content(table, _captions(table), remarks, excluded, why)


def _num_bad(log: Log, metric: str) -> int:
    rows = log.frame[(log.frame["kind"] == "step") & (log.frame["metric"] == metric)]
    return int((~np.isfinite(rows["value"])).sum())


def spearman(x: Array, y: Array) -> float | None:
    """Rank correlation, ties at their mean rank; None if one of the two does not vary."""
    one, other = (pd.Series(values).rank() for values in (x, y))
    return float(one.corr(other)) if one.nunique() > 1 and other.nunique() > 1 else None


def _captions(table: pd.DataFrame) -> list[str]:
    lines = [f"{name}: {schema.metric(name).definition}." for name in (CHURN, CLIP)]
    lines.append("A point is one rollout batch of one seed, both values pooled over its updates.")
    if (table[["x", "y"]] == 0).any(axis=None):
        lines.append("A logarithmic axis has no 0: values that are exactly 0 lie in the grey strips.")
    return [*lines, *_correlations(table)]


def _correlations(table: pd.DataFrame) -> list[str]:
    known, few = [], []
    for arm, _ in axes.arms_of(table):
        rows = table[table["arm"] == arm]
        if len(rows) < MIN_POINTS:
            few.append(f"{arm} (n = {len(rows)})")
            continue
        rho = spearman(rows["x"].to_numpy(np.float64), rows["y"].to_numpy(np.float64))
        known.append(f"{arm} {'undefined, one does not vary' if rho is None else f'{rho:+.2f}'} (n = {len(rows)})")
    lines = []
    if known:
        lines.append(
            f"Spearman's rank correlation over the points of an arm: {', '.join(known)}. No test: the batches of a run "
            "depend on each other."
        )
    if few:
        lines.append(f"No correlation from fewer than {MIN_POINTS} points: {', '.join(few)}.")
    return lines


def draw(table: pd.DataFrame, lines: Sequence[str], paper: Paper = SCREEN) -> Figure:
    """One panel, both axes logarithmic: colour and marker by algorithm, filling by arm."""
    arms = axes.arms_of(table)
    looks, many = style.looks(arms), len(table) >= MANY
    with style.applied():
        figure, (ax,) = framed(1, [_handles(table, looks)], lines, title, Grid(1, panel_height=3.2), paper)
        axes.title(ax, "A point is one rollout batch")
        words.label_x(ax, CLIP)
        words.label_y(ax, CHURN)
        x_floor = log_axis(ax, "x", table["x"].to_numpy(np.float64))
        y_floor = log_axis(ax, "y", table["y"].to_numpy(np.float64))
        places = {
            arm: (strip_height(x_floor, ax.get_xlim()[0], index, len(arms)),
                  strip_height(y_floor, ax.get_ylim()[0], index, len(arms)))
            for index, (arm, _) in enumerate(arms)
        }  # fmt: skip
        # in turns, so that no arm lies on top of all others
        for turn, (arm, _) in product(range(TURNS), arms):
            rows = table[table["arm"] == arm][turn::TURNS]
            x, y = (rows[key].where(rows[key] > 0, zero) for key, zero in zip(("x", "y"), places[arm], strict=True))
            ax.plot(
                x, y, linestyle="", color=looks[arm].colour, alpha=0.6, rasterized=many,
                **looks[arm].mark(2.2 if many else 3.5),
            )  # fmt: skip
    return figure


def _handles(table: pd.DataFrame, looks: Mapping[str, style.Look]) -> list[Line2D]:
    """One entry an arm, with its number of seeds."""
    return [
        Line2D([], [], linestyle="", color=look.colour, **look.mark(4.5),
               label=f"{arm} (N = {table.loc[table['arm'] == arm, 'seed'].nunique()})")
        for arm, look in looks.items()
    ]  # fmt: skip
