#!/usr/bin/env python3
"""Seconds of a rollout batch on more and more ranks, each with the same share of prompts.

    python tests/benchmarks/weak_scaling.py MODEL --json OUT [--ranks 1,2,4] [--steps 8] [--repeats 3]

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

PHASES = ("batch_s", "rollout_s", "old_policy_s", "update_s", "probe_s", "sync_s")
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


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--json", type=Path, required=True)
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


if __name__ == "__main__":
    main()
