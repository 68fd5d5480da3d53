"""A learning curve in three numbers, which separate fast from good: asymptote, steepness, place of half the rise.

R(x) = R0 + (A - R0) / (1 + (x_half / x)^B), as arXiv 2510.13786 fits reward against compute. X = positions of a curve.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.optimize import OptimizeWarning, curve_fit

from gspo_cli.stats.problems import Array

FEWEST_POINTS = 10
"""Positions below which four parameters are not fitted."""
STEEPEST, FLATTEST = 20.0, 0.2
RISE = 2.0
"""Standard errors between the means of the first and the last tenth, estimated from neighbours; less is noise."""


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """A fitted curve."""

    asymptote: float
    """A, in the unit of the values: how good."""
    half: float
    """Where half of the rise from R0 is reached, on the axis of the curve: how fast."""
    steepness: float
    """B: how sudden."""
    start: float
    """R0."""


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
    start, end, log_half, steepness = (float(value) for value in found)
    at_an_end = steepness > 0.98 * STEEPEST or steepness < 1.05 * FLATTEST
    if at_an_end or log_half > float(np.log(x[-1])):
        return None
    return Sigmoid(end, float(np.exp(log_half)), steepness, start)
