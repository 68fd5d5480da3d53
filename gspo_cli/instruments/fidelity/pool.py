"""The cells of several seeds as one table, with intervals."""

from collections.abc import Sequence
from dataclasses import asdict
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
INTERVALS = {"cosine": "", "gap": "gap_", "projection": "projection_"}
"""Column -> the prefix of its interval's ends."""
MEASURED = [*INTERVALS, "ceiling", "direction", "variance", "on_policy_variance", "snr", "effective", "clipped"]
"""Columns that are measured for each seed."""


def table(cells: Sequence[Cell], algorithms: dict[str, str], baseline: str | None) -> pd.DataFrame:
    """Columns `TABLE`. `algorithms` = arm -> algorithm, in order; `baseline` = the arm that gaps are taken from."""
    order = list(algorithms)
    baselines = {(c.updates, c.noise, c.seed): c.fidelity for c in cells if c.arm == baseline}
    rows = []
    for cell in sorted(cells, key=lambda c: (c.updates, c.noise, order.index(c.arm))):
        mine = cell.fidelity
        theirs = None if cell.arm == baseline else baselines.get((cell.updates, cell.noise, cell.seed))
        gaps = [] if theirs is None else [a - b for a, b in zip(mine.cosines, theirs.cosines, strict=False)]
        gap = None
        if theirs is not None and mine.cosine is not None and theirs.cosine is not None:
            gap = mine.cosine - theirs.cosine
        rows.append(
            asdict(cell)
            | asdict(mine)
            | {"algorithm": algorithms[cell.arm], "n": len(mine.cosines), "gap": gap}
            | {"batches": {"cosine": mine.cosines, "gap": gaps}}
        )
    return pool(rows)


def pool(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Columns `TABLE`, from the rows of single seeds, whose gaps are kept.

    With one seed, intervals are over its `batches`, where they are given, and see no other updates and references.
    """
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["updates"], row["noise"], row["arm"]), []).append(row)
    found: list[dict[str, Any]] = []
    for mine in cells.values():
        first, num = mine[0], len(mine)
        many = {name: [row[name] for row in mine] for name in INTERVALS}
        if num == 1 and "batches" in first:
            num, many = first["n"], first["batches"]
        mean = {key: first[key] for key in ("arm", "algorithm", "updates", "noise")} | {"n": num}
        mean |= {name: _mean([row[name] for row in mine]) for name in MEASURED}
        for name, prefix in INTERVALS.items():
            mean[f"{prefix}low"], mean[f"{prefix}high"] = _interval(many.get(name, ()), num)
        found += [*mine, mean]
    return pd.DataFrame(found, columns=TABLE).astype({"seed": "Int64", "n": "Int64"})


def pooled(found: pd.DataFrame) -> pd.DataFrame:
    """The means over seeds alone."""
    return found[found["seed"].isna()].reset_index(drop=True)


def _interval(values: Sequence[float | None], num: int) -> tuple[float | None, float | None]:
    """95 % by Student's t over `num` values; None below two, or if one is missing. Equal values have no width."""
    known = [v for v in values if v is not None]
    if len(known) < 2 or len(known) != num:
        return None, None
    array = np.array(known)
    return (known[0], known[0]) if is_flat(array) else paired_t(array).ci_t


def _mean(values: Sequence[float | None]) -> float | None:
    """None if a value is missing: a mean over fewer seeds would be of another set than its neighbours."""
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None
