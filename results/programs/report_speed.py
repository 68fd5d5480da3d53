#!/usr/bin/env python3
"""How long `gspo report plots` and `gspo report compare` take on a long study, and how much memory.

    python results/programs/report_speed.py --json OUT [--steps 10000] [--seeds 6] [--repeats 3] [--study FOLDER]

Two arms of made-up runs whose logs are as wide as real ones: every line is one of the committed golden log's with each
number varied, four `update` lines a rollout batch, chained, with `perf.jsonl` beside it. A study that `--study` names
is made once and kept. Each command runs in a process of its own: seconds of the clock and of the processor (user and
system), and largest resident memory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from measuring import interleave, shown, spread, write

sys.path += [str(Path(__file__).parents[2] / "tests" / folder) for folder in ("", "report")]
from compare_studies import change, write_run
from report_runs import canonical

from gspo_cli.runlog.checksums import write_run_checksums

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "avx2" / "metrics.jsonl"
MINI_BATCHES = 4
COMMANDS = ("plots", "compare")
LIMITS = {"clock": 10.0, "gigabytes": 1.0}
REWARD = {"grpo": 0.5, "gspo": 0.55}

Record = dict[str, Any]


def make_study(folder: Path, seeds: int, steps: int) -> None:
    """Both arms, every seed, in as many processes as there are cores."""
    jobs = [(folder, arm, seed, steps) for arm in REWARD for seed in range(seeds)]
    with ProcessPoolExecutor() as pool:
        list(pool.map(make_run, *zip(*jobs, strict=True)))


def make_run(study: Path, arm: str, seed: int, steps: int) -> None:
    """One run folder."""
    run = write_run(study, arm, seed, [0.5])
    change(run / "config.json", {"train.steps": steps})
    previous, kinds = "0" * 32, ("rollout", *["update"] * MINI_BATCHES, "step")
    with (run / "metrics.jsonl").open("w", encoding="ascii") as file:
        for seq, record in enumerate(log_lines(arm, seed, steps)):
            text = canonical(record | {"seq": seq, "prev": previous})
            previous = hashlib.sha256(text.encode()).hexdigest()[:32]
            file.write(text + "\n")
    with (run / "perf.jsonl").open("w", encoding="ascii") as file:
        for seq in range(steps * len(kinds)):
            kind, stamp = kinds[seq % len(kinds)], {"time": "2026-01-01T00:00:00.000+00:00", "mini_batch": None}
            spent = {"rollout_s": 0.3, "update_s": 0.5, "probe_s": 0.1, "batch_s": 1.0} if kind == "rollout" else {}
            file.write(canonical({"kind": kind, "seq": seq, "step": 1 + seq // len(kinds)} | stamp | spent) + "\n")
    write_run_checksums(run)


def log_lines(arm: str, seed: int, steps: int) -> Iterator[Record]:
    """The lines of a run: the golden log's, over and over, with other numbers."""
    templates: dict[str, list[Record]] = {}
    for text in GOLDEN.read_text().splitlines():
        record = json.loads(text)
        templates.setdefault(record["kind"], []).append(record)
    rng = np.random.default_rng([seed, *arm.encode()])
    for step in range(1, steps + 1):
        for kind, mini_batch in (("rollout", None), *(("update", i) for i in range(MINI_BATCHES)), ("step", None)):
            record = varied(templates[kind][int(rng.integers(len(templates[kind])))], rng)
            if kind == "rollout":
                totals = {"compute/gen_tokens": 1000 * step + seed, "compute/queries": 32 * step}
                record["metrics"] |= totals | {"reward/mean": REWARD[arm] + 0.01 * seed + 0.02 * rng.normal()}
            yield record | {"step": step, "mini_batch": mini_batch}


def varied(record: Record, rng: np.random.Generator) -> Record:
    """The line with every number that is not whole multiplied by something near 1."""
    factors = rng.uniform(0.9, 1.1, len(record["metrics"])).tolist()
    metrics = {
        name: value * factor if isinstance(value, float) and value % 1 else value
        for (name, value), factor in zip(record["metrics"].items(), factors, strict=True)
    }
    return record | {"metrics": metrics}


def measure(command: str, study: Path) -> dict[str, float]:
    """One run of a command: seconds of the clock and the processor, and largest resident memory."""
    program = [sys.executable, "-m", "gspo_cli", "report", command, str(study), "--json"]
    begin = time.perf_counter()
    child = subprocess.Popen(program, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - begin
    if status:
        sys.exit(f"{' '.join(program)} ended with {os.waitstatus_to_exitcode(status)}")
    return {"clock": seconds, "processor": used.ru_utime + used.ru_stime, "gigabytes": used.ru_maxrss * 1024 / 1e9}


def main() -> None:
    """Makes the study, measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000, help="rollout batches a run (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=6, help="runs an arm (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="times each command is run (default %(default)s)")
    parser.add_argument("--study", type=Path, help="where the study is kept (default: nowhere)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the result is written")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        study = args.study or Path(folder) / "study"
        if not study.is_dir():
            make_study(study, args.seeds, args.steps)
        size = sum(path.stat().st_size for path in study.glob("*/metrics.jsonl"))
        rows: dict[str, list[dict[str, float]]] = {command: [] for command in COMMANDS}
        for repeat in range(args.repeats):
            for command in interleave(COMMANDS, repeat):
                rows[command].append(measure(command, study))
    found = {c: {key: spread([row[key] for row in rows[c]]) for key in rows[c][0]} for c in COMMANDS}
    print(f"{2 * args.seeds} runs of {args.steps} steps, {size / 1e9:.2f} GB of metrics")
    for command, numbers in found.items():
        print(f"  {command:8} " + "  ".join(f"{key} {shown(value, '.2f')}" for key, value in numbers.items()))
    result = {"command": " ".join(["python", *sys.argv]), "limits": LIMITS, "log_bytes": size, "summary": found}
    write(args.json, result)
    late = [f"{c}: {key}" for c in COMMANDS for key, limit in LIMITS.items() if found[c][key]["median"] > limit]
    sys.exit("over the limit: " + ", ".join(late) if late else 0)


if __name__ == "__main__":
    main()
