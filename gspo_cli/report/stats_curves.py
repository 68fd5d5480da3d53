"""One number per run from a curve.

X = logged positions
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.integrate import trapezoid

Array = np.ndarray[Any, Any]


def last_mean(steps_X: Array, values_X: Array, planned: int, share: float = 0.1) -> float:
    """Mean of the values at steps above (1 - share) x planned.

    A curve that ends before the plan keeps its last value to the planned end: a run that failed is judged by where it
    fell, not by its best days. A curve without a value in that part (logged now and then) gives its last one.
    """
    after = (1 - share) * planned + 1e-9  # 0.9 x 70 is a hair above 63
    carried = np.full(max(0, planned - int(steps_X[-1])), values_X[-1])
    steps = np.concatenate([steps_X, np.arange(steps_X[-1] + 1, planned + 1)[: len(carried)]])
    inside = np.concatenate([values_X, carried])[steps > after]
    return float(inside.mean()) if len(inside) else float(values_X[-1])


def area_mean(x_X: Array, y_X: Array, x0: float, x1: float) -> float:
    """Trapezoid area under the curve from x0 to x1 over x1 - x0: a mean in the unit of y.

    Linear between the points and cut at the ends; outside its own range a curve keeps its first and last value. With
    x0 = x1 its value there.
    """
    if x1 <= x0:
        return float(np.interp(x0, x_X, y_X))
    inside = (x_X > x0) & (x_X < x1)
    x = np.concatenate([[x0], x_X[inside], [x1]])
    return float(trapezoid(np.interp(x, x_X, y_X), x) / (x1 - x0))
