"""One number for a whole curve, and the step from which two arms' curves differ.

X = positions of a curve, S = seeds, T = steps; D_ST = treatment minus baseline
"""

from itertools import product
from math import floor

import numpy as np
from scipy.integrate import trapezoid

from gspo_cli.stats.paired import RNG_SEED
from gspo_cli.stats.problems import Array

MOST_FLIPS = 1 << 12
"""Sign flips of whole curves: all of them up to 12 seeds, else as many random ones."""


def last_mean(steps_X: Array, values_X: Array, planned: int, share: float = 0.1) -> float:
    """Mean of the values at steps above (1 - share) x planned.

    A curve that ends early keeps its last value to the planned end, so that a failed run is judged by where it
    stopped and not by its best phase. A curve without a value in that part (logged rarely) gives its last one.
    """
    after = (1 - share) * planned + 1e-9  # 0.9 x 70 is a hair above 63
    inside = values_X[steps_X > after]
    if carried := max(0, planned - max(int(steps_X[-1]), floor(after))):  # counted: steps may be billions of tokens
        return float((inside.sum() + carried * values_X[-1]) / (len(inside) + carried))
    return float(inside.mean()) if len(inside) else float(values_X[-1])


def area_mean(x_X: Array, y_X: Array, x0: float, x1: float) -> float:
    """Trapezoid area under the curve from x0 to x1 over x1 - x0: a mean in the unit of y.

    Linear between points and cut at x0 and x1. Beyond its own range a curve keeps its first or last value. If x0 = x1,
    the value there.
    """
    if x1 <= x0:
        return float(np.interp(x0, x_X, y_X))
    inside = (x_X > x0) & (x_X < x1)
    x = np.concatenate([[x0], x_X[inside], [x1]])
    return float(trapezoid(np.interp(x, x_X, y_X), x) / (x1 - x0))


def max_t(D_ST: Array) -> Array:
    """Adjusted p of "the curves differ at this step", [T], for all steps at once (Westfall and Young).

    Flips the sign of whole curves of differences, seed by seed; a step's adjusted p is the share of flips whose largest
    |t| over all steps reaches the step's own |t|. A step without spread has t = 0 if its mean is 0, else infinite t.
    """
    D_ST = np.asarray(D_ST, dtype=np.float64)
    num_seeds = len(D_ST)
    if 2**num_seeds <= MOST_FLIPS:
        signs = np.array(list(product((1.0, -1.0), repeat=num_seeds)))
    else:
        drawn = np.random.default_rng(RNG_SEED).choice([-1.0, 1.0], (MOST_FLIPS - 1, num_seeds))
        signs = np.concatenate([np.ones((1, num_seeds)), drawn])
    squares_T = (D_ST**2).sum(axis=0)  # the same under every flip
    observed_T = _t_squared(D_ST.sum(axis=0), squares_T, num_seeds)
    # one flip at a time: all of them at ten thousand steps would not fit into memory
    largest = np.array([_t_squared(row @ D_ST, squares_T, num_seeds).max(initial=0.0) for row in signs])
    return np.array((largest[:, None] >= observed_T * (1 - 1e-9)).mean(axis=0))


def _t_squared(sums_T: Array, squares_T: Array, n: int) -> Array:
    """t^2 = (sum^2 / n) / ((squares - sum^2 / n) / (n - 1)); infinite where all differences are equal but not 0."""
    part_T = sums_T**2 / n
    rest_T = squares_T - part_T
    flat_T = rest_T <= 1e-12 * np.maximum(squares_T, 1e-300)
    return np.where(flat_T, np.where(part_T > 0, np.inf, 0.0), (n - 1) * part_T / np.where(flat_T, 1.0, rest_T))


def apart_from(steps_T: Array, p_T: Array, alpha: float = 0.05) -> int | None:
    """The first step from which on every step's adjusted p is at most alpha; None if the last step's is not."""
    above = np.flatnonzero(p_T > alpha)
    first = int(above[-1]) + 1 if len(above) else 0
    return int(steps_T[first]) if first < len(steps_T) else None
