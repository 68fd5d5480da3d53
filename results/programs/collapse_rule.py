"""How often the collapse rule (`report.collapse`) fires on runs that do not collapse, and on runs that do.

    python results/programs/collapse_rule.py [--runs 2000]

A run is simulated response by response: prompts differ in how hard they are (a beta distribution around the mean
reward), and rewards are 0 or 1. The rule reads what a log holds: mean, spread, spread within groups. The former rule
(last tenth below half of the best tenth, and by 0.1) is judged beside it. One JSON line a row. R = runs, T = steps,
P = prompts.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from gspo_cli.runlog.collapse import RewardHistory, batch_reward, collapse_window

Array = np.ndarray[Any, Any]
SPREAD = 2.0
"""Prompts: Beta(SPREAD p, SPREAD (1 - p)); a third of the variance of a 0-1 reward lies between them."""
STATIONARY = (0.1, 0.3, 0.5, 0.8)
STEPS = (10, 20, 60, 200)
BATCHES = ((8, 4), (32, 16))
FALLS = ((0.3, 0.0), (0.4, 0.1), (0.5, 0.1), (0.7, 0.3), (0.7, 0.5))
"""Mean reward before and after a sudden fall at 60 % of the plan."""


def simulate(mean_T: Array, prompts: int, samples: int, num: int, rng: np.random.Generator) -> tuple[Array, ...]:
    """(reward/mean, reward/std, reward/group_std), each [R, T]."""
    p_T = np.clip(mean_T, 1e-9, 1 - 1e-9)
    p_RTP = rng.beta(SPREAD * p_T, SPREAD * (1 - p_T), (prompts, num, len(mean_T))).transpose(1, 2, 0)
    right_RTP = rng.binomial(samples, p_RTP)
    n = prompts * samples
    mean = right_RTP.sum(2) / n
    within = right_RTP * (samples - right_RTP) / samples / (samples - 1)
    return mean, np.sqrt(mean * (1 - mean) * n / (n - 1)), np.sqrt(within).mean(2)


def fires(curves: tuple[Array, ...], prompts: int, samples: int) -> tuple[Array, Array, Array, Array]:
    """(the rule at the end of the run, at any step, the former rule at the end, at any step), each [R]."""
    num, steps = curves[0].shape
    window = collapse_window(steps)
    now = np.zeros((num, steps), dtype=bool)
    for r in range(num):
        history = RewardHistory(window)
        rows = zip(*(c[r].tolist() for c in curves), strict=True)
        now[r] = [history.add(batch_reward(*row, prompts, samples)) for row in rows]
    sums = np.concatenate([np.zeros((num, 1)), curves[0].cumsum(1)], axis=1)
    last = (sums[:, window:] - sums[:, :-window]) / window
    best = np.maximum.accumulate(last, axis=1)
    old = (last < 0.5 * best) & (best - last >= 0.1)
    return now[:, -1], now.any(1), old[:, -1], old.any(1)


def row(mean_T: Array, prompts: int, samples: int, num: int) -> dict[str, float]:
    """Percent of runs in which the rules fire."""
    rng = np.random.default_rng([len(mean_T), prompts, *(int(1000 * m) for m in mean_T[[0, -1]])])
    names = ("at the end", "at any step", "former rule, at the end", "former rule, at any step")
    found = fires(simulate(mean_T, prompts, samples, num, rng), prompts, samples)
    return {name: round(100 * float(hit.mean()), 2) for name, hit in zip(names, found, strict=True)}


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=2000)
    num = parser.parse_args().runs
    for prompts, samples in BATCHES:
        for steps in STEPS:
            size = {"prompts": prompts, "samples": samples, "steps": steps}
            for mean in STATIONARY:
                rates = row(np.full(steps, mean), prompts, samples, num)
                print(json.dumps({"stationary": mean, **size, **rates}), flush=True)
            for before, after in FALLS:
                mean_T = np.where(np.arange(steps) < 0.6 * steps, before, after)
                rates = row(mean_T, prompts, samples, num // 4)
                print(json.dumps({"fall": (before, after), **size, **rates}), flush=True)


if __name__ == "__main__":
    main()
