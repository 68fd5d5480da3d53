#!/usr/bin/env python3
"""Seconds of a rollout batch on more and more ranks, each with the same share of prompts.

    python results/programs/weak_scaling.py MODEL --json OUT [--figures FOLDER] [--ranks 1,2,4] [--repeats 3]

The quickstart's recipe (GSPO) on the given model, `gspo train --launcher torchrun`, one thread a rank, 16 prompts x 16
samples a rank, micro-batches of 1024 tokens; no evaluation, no stored rollouts. Medians over the batches after the
second; the ranges are over the repeats, which alternate. On a machine with fewer cores than ranks the last point can
only show what sharing costs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import shown, spread, write

PARTS = {
    "rollout_s": ("sampling and scoring", "#0072b2"),
    "old_policy_s": ("old policy", "#56b4e9"),
    "update_s": ("updates", "#d55e00"),
    "probe_s": ("expert probe", "#999999"),
    "sync_s": ("weights to the sampler", "#009e73"),
}
PHASES = ("batch_s", *PARTS)
WARMUP = 2


def measure(model: str, ranks: int, steps: int, folder: Path) -> dict[str, float]:
    """Median seconds of each phase in one run."""
    command = [
        sys.executable, "-m", "gspo_cli", "-q", "train", "quickstart", "--model", model, "--steps", str(steps),
        "--out", str(folder), "--name", f"r{ranks}", "--overwrite",
        "--set", f"rollout.prompts={16 * ranks}", "--set", "eval.bench=[]", "--set", "train.micro_batch_tokens=1024",
        "--set", "model.threads=1",
    ]  # fmt: skip
    if ranks > 1:
        command += ["--launcher", "torchrun", "--nproc", str(ranks)]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (folder / f"r{ranks}" / "gspo-s0" / "perf.jsonl").read_text().splitlines()]
    batches = [line for line in lines if "batch_s" in line][WARMUP:]
    return {phase: statistics.median(line[phase] for line in batches) for phase in PHASES}


def draw(found: dict[str, Any], folder: Path) -> None:
    """The phases of a batch, stacked, for each number of ranks."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.2))
    sizes = [str(size) for size in found["ranks"]]
    seconds = [entry["seconds"] for entry in found["ranks"].values()]
    bottom = [0.0] * len(sizes)
    for phase, (label, colour) in PARTS.items():
        heights = [one[phase]["median"] for one in seconds]
        axes.bar(sizes, heights, bottom=bottom, label=label, color=colour)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    whole = [one["batch_s"] for one in seconds]
    reach = [[w["median"] - w["min"] for w in whole], [w["max"] - w["median"] for w in whole]]
    axes.errorbar(sizes, [w["median"] for w in whole], yerr=reach, fmt="k.", capsize=4, label="whole batch, with range")
    axes.set(xlabel="ranks, 16 prompts x 16 samples each", ylabel="seconds a rollout batch")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    for suffix in ("svg", "png"):
        figure.savefig(folder / f"weak_scaling.{suffix}", dpi=150)


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="where the figure is written")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    sizes = [int(n) for n in given.ranks.split(",")]
    runs: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory() as name:
        for _ in range(given.repeats):
            for size in sizes:
                runs[size].append(measure(given.model, size, given.steps, Path(name)))
    found: dict[str, Any] = {"cores": os.cpu_count(), "prompts_a_rank": 16, "ranks": {}}
    for size, repeats in runs.items():
        phases = {phase: spread([run[phase] for run in repeats]) for phase in PHASES}
        efficiency = spread([a["batch_s"] / b["batch_s"] for a, b in zip(runs[sizes[0]], repeats, strict=True)])
        found["ranks"][size] = {"seconds": phases, "efficiency": efficiency}
        print(f"{size} ranks: {shown(phases['batch_s'])} s a batch, {shown(efficiency)} of one rank's speed a rank")
    write(given.json, found)
    if given.figures:
        draw(found, given.figures)


if __name__ == "__main__":
    main()
