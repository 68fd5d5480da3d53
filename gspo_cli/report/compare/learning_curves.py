"""Learning curves in three numbers, which separate fast from good; a description, on which no verdict depends.

R(x) = R0 + (A - R0) / (1 + (x_half / x)^B), as arXiv 2510.13786 fits reward against compute: asymptote A, place of half
the rise, steepness B. X = positions of a curve.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.optimize import OptimizeWarning, curve_fit

from gspo_cli.report.compare.verdict import FEWEST_TO_SUGGEST, Interval
from gspo_cli.report.runs.metric_spec import CurveMetric, MetricSpec
from gspo_cli.report.runs.pairs import Pair
from gspo_cli.stats.paired import is_flat, paired_t
from gspo_cli.stats.problems import Array

MOST_POINTS = 1000
"""Positions of a fit; a longer curve is averaged over equal stretches."""
FEWEST_POINTS = 10
"""Positions below which four parameters are not fitted."""
STEEPEST, FLATTEST = 20.0, 0.2
RISE = 2.0
"""Standard errors between the means of the first and the last tenth, estimated from neighbours; less is noise."""
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
    fits = [fit for x_X, y_X in curves.values() if (fit := fit_sigmoid(*_thinned(x_X, y_X))) is not None]

    def over_seeds(values: list[float]) -> Estimate:
        each = np.array(values)
        ci = None if len(each) < FEWEST_TO_SUGGEST or is_flat(each) else paired_t(each).ci
        return Estimate(float(each.mean()) if len(each) else None, ci)

    return LearningCurve(
        run, len(curves), len(fits), over_seeds([fit.asymptote for fit in fits]),
        over_seeds([fit.half for fit in fits]), over_seeds([fit.steepness for fit in fits]), axis,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """A fitted curve."""

    asymptote: float
    """A, in the unit of the values: how good."""
    half: float
    """Where half of the rise from R0 is reached, on the axis of the curve: how fast."""
    steepness: float
    """B: how sudden."""


def fit_sigmoid(x_X: Array, y_X: Array) -> Sigmoid | None:
    """Least squares over the positions above 0.

    None where the curve does not show its asymptote: fewer than `FEWEST_POINTS` positions, ends that differ by less
    than `RISE` standard errors, no convergence, half of the rise beyond the last position, or a steepness at the end of
    its range. Otherwise A would be an extrapolation.
    """
    keep = (x_X > 0) & np.isfinite(y_X)
    x, y = np.asarray(x_X[keep], dtype=np.float64), np.asarray(y_X[keep], dtype=np.float64)
    if len(x) < FEWEST_POINTS or float(np.ptp(y)) == 0:
        return None
    part, spread = max(1, len(y) // 10), float(np.ptp(y))
    first, last = float(y[:part].mean()), float(y[-part:].mean())
    noise = float(np.std(np.diff(y))) / 2**0.5
    if abs(last - first) < RISE * noise * (2 / part) ** 0.5:
        return None

    def curve(at: Array, start: float, end: float, log_half: float, steepness: float) -> Array:
        return np.asarray(start + (end - start) / (1 + np.exp(np.clip(steepness * (log_half - np.log(at)), -60, 60))))

    low = [y.min() - spread, y.min() - spread, np.log(x[0]) - 3, FLATTEST]
    high = [y.max() + spread, y.max() + spread, np.log(x[-1]) + 3, STEEPEST]
    begin = [first, last, float(np.log(x).mean()), 1.5]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizeWarning)
            found, _ = curve_fit(curve, x, y, p0=np.clip(begin, low, high), bounds=(low, high), max_nfev=400)
    except RuntimeError:
        return None
    _, end, log_half, steepness = (float(value) for value in found)
    at_an_end = steepness > 0.98 * STEEPEST or steepness < 1.05 * FLATTEST
    return None if at_an_end or log_half > float(np.log(x[-1])) else Sigmoid(end, float(np.exp(log_half)), steepness)


def _thinned(x_X: Array, y_X: Array) -> tuple[Array, Array]:
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
