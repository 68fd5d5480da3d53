"""Figure: expert volatility against the share of clipped tokens, one point a rollout batch."""

from collections.abc import Sequence
from itertools import product
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gspo_cli.report.figures import axes, notes, style, words
from gspo_cli.report.figures.axes import log_axis, strip_height
from gspo_cli.report.figures.canvas import Grid, arm_handles, framed
from gspo_cli.report.figures.curves import Content, StudyFigure
from gspo_cli.report.figures.style import SCREEN, Paper
from gspo_cli.report.runs.log import Log
from gspo_cli.runlog import schema

TITLE = "Experts that change against clipped tokens"
CLIP, CHURN = "clip/token_frac", "moe/slot_churn_step"
AXES: dict[Literal["x", "y"], str] = {"x": CLIP, "y": CHURN}
MIN_POINTS = 10
"""Below, a rank correlation says next to nothing."""
MANY = 3000
"""Points from which they are small, and in the svg one image."""
TURNS = 10
TABLE = ["arm", "algorithm", "seed", "step", "x", "y"]
"""Columns of the table: `x` = clipped share, `y` = churn, of one `step` line."""


def points(log: Log) -> pd.DataFrame:
    """The rollout batches of a run that have a finite value of both."""
    both = pd.DataFrame({axis: log.values("step", name).set_index("step")["value"] for axis, name in AXES.items()})
    both = both[np.isfinite(both).all(axis=1)].rename_axis("step").reset_index()
    return both.assign(arm=log.run.arm, algorithm=log.run.algorithm, seed=log.run.seed)[TABLE]


def content(logs: Sequence[Log]) -> Content:
    """One row a point."""
    found = [(log, rows) for log in logs if len(rows := points(log))]
    why = f"no rollout batch has both {CLIP} and {CHURN}"
    remarks = []
    for log, metric in product(logs, AXES.values()):
        remarks += notes.not_finite([(log, log.values("step", metric))], "step", metric)
    table = pd.concat([rows for _, rows in found] or [pd.DataFrame(columns=TABLE)], ignore_index=True)
    return Content(table, _captions(table), remarks, notes.without_values(logs, found, why), why)


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
        rho = float(rows[["x", "y"]].corr("spearman").to_numpy()[0, 1])
        known.append(f"{arm} {'undefined, one does not vary' if np.isnan(rho) else f'{rho:+.2f}'} (n = {len(rows)})")
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
        figure, (ax,) = framed(
            1, [arm_handles(table, looks, points=True)], lines, TITLE, Grid(1, panel_height=3.2), paper
        )
        axes.title(ax, "A point is one rollout batch")
        words.label_x(ax, CLIP)
        words.label_y(ax, CHURN)
        floors = {axis: log_axis(ax, axis, table[axis].to_numpy(np.float64)) for axis in AXES}
        edges = {"x": ax.get_xlim()[0], "y": ax.get_ylim()[0]}
        # in turns, so that no arm lies on top of all others
        for turn, (index, (arm, _)) in product(range(TURNS), enumerate(arms)):
            rows = table[table["arm"] == arm][turn::TURNS]
            zeros = {axis: strip_height(floors[axis], edges[axis], index, len(arms)) for axis in AXES}
            x, y = (rows[axis].where(rows[axis] > 0, zero) for axis, zero in zeros.items())
            ax.plot(
                x, y, linestyle="", color=looks[arm].colour, alpha=0.6, rasterized=many,
                **looks[arm].mark(2.2 if many else 3.5),
            )  # fmt: skip
    return figure


FIGURE = StudyFigure(TITLE, {("step", CLIP), ("step", CHURN)}, content, draw)
