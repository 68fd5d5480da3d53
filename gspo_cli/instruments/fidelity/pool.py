"""The cells of several seeds as one table, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pandas as pd

from gspo_cli.instruments.fidelity.measure import Cell
from gspo_cli.stats.paired import is_flat, paired_t

TABLE = [
    "arm", "algorithm", "updates", "noise", "seed", "n", "cosine", "low", "high", "ceiling", "gap", "gap_low",
    "gap_high", "projection", "projection_low", "projection_high", "direction", "variance", "on_policy_variance", "snr",
    "effective", "clipped",
]  # fmt: skip
"""One row a cell and seed, and one without `seed` that holds the means over seeds. `low` to `high` are 95 % intervals
of Student's t; `gap` is the cosine minus the baseline's in the same cell and seed; `n` = what intervals are over."""
NUMBERS = ("cosine", "ceiling", "gap", "projection", "direction", "variance", "on_policy_variance", "snr", "effective",
           "clipped")  # fmt: skip
"""Columns that are measured for each seed."""


def table(cells: Sequence[Cell], algorithms: dict[str, str], baseline: str | None) -> pd.DataFrame:
    """Columns `TABLE`. `algorithms` = arm -> algorithm, in order; `baseline` = the arm that gaps are taken from."""
    order = {arm: i for i, arm in enumerate(algorithms)}
    keys = sorted({(c.updates, c.noise, order[c.arm]) for c in cells})
    names = list(algorithms)
    rows = []
    for updates, noise, index in keys:
        arm = names[index]
        mine = {c.seed: c for c in cells if (c.arm, c.updates, c.noise) == (arm, updates, noise)}
        theirs = {c.seed: c for c in cells if (c.arm, c.updates, c.noise) == (baseline, updates, noise)}
        theirs = {} if arm == baseline else theirs
        about = {"arm": arm, "algorithm": algorithms[arm], "updates": updates, "noise": noise}
        rows += [
            about | {"seed": seed, "n": len(cell.fidelity.cosines)} | _one(cell, theirs.get(seed))
            for seed, cell in mine.items()
        ]
        rows.append(about | _pooled(list(mine.values()), [theirs[s] for s in mine if s in theirs]))
    return pd.DataFrame(rows, columns=TABLE).astype({"seed": "Int64", "n": "Int64"})


def table_of_rows(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """The same from the rows of single seeds, two or more; their gaps are kept."""
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["updates"], row["noise"], row["arm"]), []).append(row)
    found: list[dict[str, Any]] = []
    for mine in cells.values():
        about = {key: mine[0][key] for key in ("arm", "algorithm", "updates", "noise")}
        found += sorted(mine, key=lambda row: row["seed"])
        found.append(about | _over_seeds([{name: row[name] for name in NUMBERS} for row in mine]))
    return pd.DataFrame(found, columns=TABLE).astype({"seed": "Int64", "n": "Int64"})


def pooled(found: pd.DataFrame) -> pd.DataFrame:
    """The means over seeds alone."""
    return found[found["seed"].isna()].reset_index(drop=True)


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """95 % by Student's t; None below two values. Equal values have the interval of no width."""
    if len(values) < 2:
        return None, None
    array = np.array(values)
    return (values[0], values[0]) if is_flat(array) else paired_t(array).ci_t


def _one(cell: Cell, baseline: Cell | None) -> dict[str, float | None]:
    known = cell.fidelity
    gap = None
    if baseline is not None and known.cosine is not None and baseline.fidelity.cosine is not None:
        gap = known.cosine - baseline.fidelity.cosine
    return {
        "cosine": known.cosine, "ceiling": cell.ceiling, "gap": gap, "projection": known.projection,
        "direction": known.direction, "variance": known.variance, "on_policy_variance": cell.on_policy_variance,
        "snr": known.snr, "effective": cell.effective, "clipped": cell.clipped,
    }  # fmt: skip


def _pooled(cells: list[Cell], baselines: list[Cell]) -> dict[str, float | int | None]:
    """Means over seeds; with one seed, intervals over its batches, which see neither other updates nor references."""
    rows = [_one(c, b) for c, b in zip_longest(cells, baselines) if c is not None]
    if len(cells) > 1:
        return _over_seeds(rows)
    mine, theirs = cells[0].fidelity.cosines, baselines[0].fidelity.cosines if baselines else ()
    many: dict[str, list[float | None]] = {
        "": list(mine), "gap_": [a - b for a, b in zip(mine, theirs, strict=False)], "projection_": [],
    }  # fmt: skip
    return rows[0] | _intervals(many, len(mine))


def _over_seeds(rows: list[dict[str, float | None]]) -> dict[str, float | int | None]:
    out: dict[str, float | int | None] = {name: _mean([row[name] for row in rows]) for name in NUMBERS}
    many = {f"{name}_".removeprefix("cosine_"): [row[name] for row in rows] for name in ("cosine", "gap", "projection")}
    return out | _intervals(many, len(rows))


def _intervals(many: dict[str, list[float | None]], num: int) -> dict[str, float | int | None]:
    """The ends of each interval; None where a value is missing."""
    out: dict[str, float | int | None] = {"n": num}
    for name, values in many.items():
        known = [v for v in values if v is not None]
        out[f"{name}low"], out[f"{name}high"] = interval(known) if len(known) == num else (None, None)
    return out


def _mean(values: Sequence[float | None]) -> float | None:
    """None if a value is missing: a mean over fewer seeds would be of another set than its neighbours."""
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None
