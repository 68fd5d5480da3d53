#!/usr/bin/env python3
"""Does the fidelity of one step predict what training with it gives? Rank correlation over the cells of a map.

    python results/programs/fidelity_predicts.py --rows ROWS.json ... --studies STUDY ... --out FOLDER

ROWS are `fidelity-rows.json` of single seeds (any numbers of updates, the same arms); STUDIES are the studies or
archives of a sweep over `train.minibatches` and `noise.token`. Writes `prediction.json`, `.csv` and `.svg`. No model is
run.

The predictor was committed while the first cells trained. A batch that is divided into m mini-batches meets policies
that are 0 to m - 1 updates younger: the predictor of a cell is the gap in cosine (treatment minus baseline) at the
cell's noise, linear between the numbers of updates that were measured, and its mean over these m ages. The effect of a
cell is the mean over seeds of the difference that `gspo report compare` finds. The 95 % interval is a bootstrap over
seeds of both.
"""

import argparse
import csv
import json
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

from gspo_cli.report.compare.effect_map import map_cells
from gspo_cli.report.compare.study import ComparisonRequest

AXES = ("train.minibatches", "noise.token")
DRAWS = 10_000

Gaps = dict[tuple[float, int], dict[int, float]]
"""(noise, updates) -> seed -> gap in cosine."""
Effects = dict[tuple[int, float], dict[int, float]]
"""(mini-batches, noise) -> seed -> treatment minus baseline."""


def read_gaps(files: list[Path], arm: str) -> Gaps:
    """The gaps of one arm in the rows of single seeds."""
    gaps: Gaps = {}
    for file in files:
        for row in json.loads(file.read_text(encoding="utf-8"))["rows"]:
            if row["arm"] == arm and row["seed"] is not None:
                gaps.setdefault((row["noise"], row["updates"]), {})[row["seed"]] = row["gap"]
    return gaps


def read_effects(studies: list[str], root: Path) -> Effects:
    """The differences of each seed in every cell that has any, in points of reward."""
    _, cells = map_cells(studies, root, ComparisonRequest(), AXES)
    return {
        (int(cell.values[AXES[0]]), float(cell.values[AXES[1]])): {
            seed: 100 * difference for seed, _, _, difference in cell.result.per_seed
        }
        for cell in cells
        if cell.result and cell.result.per_seed
    }


def predictor(gaps: Gaps, minibatches: int, noise: float, seeds: list[int] | None = None) -> float:
    """The mean gap over the ages 0 to m - 1; `seeds` may name a seed several times."""
    updates = sorted(u for n, u in gaps if n == noise)
    means = []
    for u in updates:
        found = gaps[noise, u]
        means.append(float(np.mean([found[s] for s in (seeds or sorted(found))])))
    return float(np.mean(np.interp(range(minibatches), updates, means)))


def correlation(gaps: Gaps, effects: Effects, seed: int = 0) -> dict[str, Any]:
    """Spearman's rho over the cells, its bootstrap interval, and the exact share of signs that agree."""
    cells = sorted(effects)
    x = [predictor(gaps, m, noise) for m, noise in cells]
    y = [float(np.mean(list(effects[cell].values()))) for cell in cells]
    rng = np.random.default_rng(seed)
    measured = sorted(set.intersection(*(set(found) for found in gaps.values())))
    drawn = []
    for _ in range(DRAWS):
        again = rng.choice(measured, len(measured)).tolist()
        trained = {cell: rng.choice(list(found.values()), len(found)).mean() for cell, found in effects.items()}
        rho = stats.spearmanr([predictor(gaps, *cell, again) for cell in cells], [trained[c] for c in cells]).statistic
        drawn.append(float(rho))
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return {
        "rho": float(stats.spearmanr(x, y).statistic), "interval_95": [float(low), float(high)], "cells": len(cells),
        "fidelity_seeds": measured, "trained_seeds": sorted({s for found in effects.values() for s in found}),
        "same_sign": sum(a * b > 0 for a, b in zip(x, y, strict=True)),
        "rows": [
            {"minibatches": m, "noise": noise, "predicted_gap": a, "effect_points": b, "n": len(effects[m, noise])}
            for (m, noise), a, b in zip(cells, x, y, strict=True)
        ],
    }  # fmt: skip


def draw(found: dict[str, Any], path: Path) -> None:
    """Trained effect against predicted gap, one point a cell."""
    figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
    for row in found["rows"]:
        axes.plot(row["predicted_gap"], row["effect_points"], "o", color="C0")
        text = f"{row['minibatches']}, {row['noise']:g}"
        axes.annotate(text, (row["predicted_gap"], row["effect_points"]), textcoords="offset points", xytext=(5, 3))
    axes.axhline(0, color="0.7", zorder=0)
    axes.axvline(0, color="0.7", zorder=0)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel("predicted: mean gap in cosine, GSPO minus GRPO")
    axes.set_ylabel("trained: difference in reward, points")
    low, high = found["interval_95"]
    axes.set_title(f"rank correlation {found['rho']:.2f} [{low:.2f}, {high:.2f}]; labels: mini-batches, noise", size=9)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Read, correlate, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, nargs="+", required=True)
    parser.add_argument("--studies", nargs="+", required=True)
    parser.add_argument("--arm", default="gspo")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        effects = read_effects(asked.studies, Path(root))
    found = correlation(read_gaps(asked.rows, asked.arm), effects)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "prediction.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    with (asked.out / "prediction.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, found["rows"][0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(found["rows"])
    plt.rcParams["svg.hashsalt"] = "gspo"
    draw(found, asked.out / "prediction.svg")
    print(f"rho {found['rho']:.3f} {found['interval_95']}, {found['cells']} cells, same sign in {found['same_sign']}")


if __name__ == "__main__":
    main()
