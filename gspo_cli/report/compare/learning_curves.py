"""Learning curves in a few numbers, which separate fast from good; a description, on which no verdict depends.

X = positions of a curve.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gspo_cli.report.compare.verdict import FEWEST_TO_SUGGEST, Interval
from gspo_cli.report.runs.metric_spec import CurveMetric, MetricSpec
from gspo_cli.report.runs.pairs import Pair
from gspo_cli.stats.paired import is_flat, paired_t
from gspo_cli.stats.problems import Array
from gspo_cli.stats.sigmoid import fit_sigmoid

MOST_POINTS = 1000
"""Positions of a fit; a longer curve is averaged over equal stretches."""
Curves = dict[int, tuple[Array, Array]]
"""Seed -> (positions, values)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds with its 95 % interval; None where no seed, or too few, allow one."""

    value: float | None
    ci: Interval | None


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """A sigmoid through the curves of a run or an arm."""

    run: str
    n: int
    """Seeds."""
    fitted: int
    """Seeds whose curve showed its asymptote."""
    asymptote: Estimate
    half: Estimate
    steepness: Estimate
    axis: str


def learning_curve(run: str, curves: Curves, axis: str = "steps") -> LearningCurve:
    """A run's (or an arm's) asymptote and the place of half its rise, the means over seeds with their intervals.

    Each seed has its own fit. `fitted` of `n` seeds showed their asymptote; the others are left out, so with fewer fits
    than seeds the means are about the runs that got so far.
    """
    fits = [fit for x_X, y_X in curves.values() if (fit := fit_sigmoid(*thinned(x_X, y_X))) is not None]

    def over_seeds(values: list[float]) -> Estimate:
        each = np.array(values)
        ci = None if len(each) < FEWEST_TO_SUGGEST or is_flat(each) else paired_t(each).ci
        return Estimate(float(each.mean()) if len(each) else None, ci)

    return LearningCurve(
        run, len(curves), len(fits), over_seeds([fit.asymptote for fit in fits]),
        over_seeds([fit.half for fit in fits]), over_seeds([fit.steepness for fit in fits]), axis,
    )  # fmt: skip


def thinned(x_X: Array, y_X: Array) -> tuple[Array, Array]:
    """The curve as at most `MOST_POINTS` means over equal stretches."""
    if len(x_X) <= MOST_POINTS:
        return x_X, y_X
    parts = np.array_split(np.arange(len(x_X)), MOST_POINTS)
    return np.array([x_X[part].mean() for part in parts]), np.array([y_X[part].mean() for part in parts])


def learning_curves(pair: Pair, spec: MetricSpec, kept_S: Array) -> list[LearningCurve]:
    """Both arms' curves of the metric along its own axis, over the pairs without a collapse; none for a benchmark."""
    if not isinstance(spec, CurveMetric):
        return []
    seeds = [seed for seed, keep in zip(pair.seeds, kept_S.tolist(), strict=True) if keep]
    found = []
    for arm, side in ((pair.baseline, pair.left), (pair.treatment, pair.right)):
        known = {seed: record.curves.xy(spec.metric, spec.budget) for seed in seeds if (record := side[seed]).curves}
        curves = {seed: xy for seed, xy in known.items() if xy is not None}
        found.append(learning_curve(arm, curves, spec.budget))
    return found
