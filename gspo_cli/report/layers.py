"""Numbers of the heat map: expert volatility by layer and rollout batch, one table for all arms.

S = seeds, L = MoE layers, X = rollout batches
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gspo_cli.report.curves import Array
from gspo_cli.report.load import LAYERS, Log

METRIC = "moe/slot_churn_step"
NAMES = METRIC + LAYERS
COLUMNS = 400
"""Most cells in a row: as many as an image of half the page's width has points for."""
TABLE = ["arm", "algorithm", "layer", "first", "last", "y", "n"]
"""Columns of the table. A cell covers the rollout batches `first` to `last`; `y` is empty where it has no value; `n` =
the arm's seeds."""


def layer_rows(log: Log) -> pd.DataFrame:
    """A run's values: `step`, `layer`, `value` (NaN where it is not finite)."""
    names = log.frame["metric"].cat.categories
    numbers = {name: int(name.removeprefix(NAMES)) for name in names if name.startswith(NAMES)}
    rows = log.frame[log.frame["metric"].isin(list(numbers)) & (log.frame["kind"] == "step")]
    value = rows["value"].where(np.isfinite(rows["value"]))
    return pd.DataFrame({"step": rows["step"], "layer": rows["metric"].map(numbers).astype("int64"), "value": value})


def cells(runs: Sequence[tuple[Log, pd.DataFrame]]) -> pd.DataFrame:
    """The table of runs with their `layer_rows`; all arms share layers and rollout batches."""
    if not runs:
        return pd.DataFrame(columns=TABLE)
    layers = sorted(set().union(*(rows["layer"].unique() for _, rows in runs)))
    steps = np.arange(min(rows["step"].min() for _, rows in runs), max(rows["step"].max() for _, rows in runs) + 1)
    width = -(-len(steps) // COLUMNS)
    arms = dict.fromkeys((log.run.arm, log.run.algorithm) for log, _ in runs)
    parts = []
    for arm, algorithm in arms:
        mine = [_matrix(rows, layers, steps) for log, rows in runs if log.run.arm == arm]
        cells_LX = _merge(np.stack(mine).mean(axis=0), width)
        first = np.tile(steps[::width], len(layers))
        parts.append(
            pd.DataFrame(
                {
                    "arm": arm,
                    "algorithm": algorithm,
                    "layer": np.repeat(layers, cells_LX.shape[1]),
                    "first": first,
                    "last": np.minimum(first + width - 1, steps[-1]),
                    "y": cells_LX.ravel(),
                    "n": len(mine),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)[TABLE]


def _matrix(rows: pd.DataFrame, layers: Sequence[int], steps: Array) -> Array:
    """A run's values [L, X]; NaN where it has none."""
    values_LX = np.full((len(layers), len(steps)), np.nan)
    values_LX[np.searchsorted(layers, rows["layer"]), rows["step"] - steps[0]] = rows["value"]
    return values_LX


def _merge(values_LX: Array, width: int) -> Array:
    """Means over `width` neighbouring rollout batches; NaN where one of them has no value."""
    starts = range(0, values_LX.shape[1], width)
    return np.stack([values_LX[:, start : start + width].mean(axis=1) for start in starts], axis=1)
