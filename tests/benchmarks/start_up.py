#!/usr/bin/env python3
"""How long the program takes to answer: `gspo --help`, and `gspo train` up to its first rollout.

    python tests/benchmarks/start_up.py --json OUT [--repeats 5]

Wall-clock seconds from the start of a process. Each repeat measures, there and back: the bare interpreter
(`python -c pass`), `gspo --help`, the bare import of the libraries that training needs (`import torch, transformers`
and the two model classes), and `gspo train quickstart --steps 1` until its first rollout batch begins. The latter is
read off the run's own log: the time of its `rollout` line less the batch's seconds. One such run comes before the
first repeat, so the cold start is in its cache; the evaluation before the first batch is part of the time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from measuring import in_turn, shown, spread, write

GSPO = [sys.executable, "-m", "gspo_cli"]
LIBRARIES = "import torch; from transformers import AutoTokenizer, Qwen3MoeForCausalLM"
LIMITS = {"help": 0.3, "first_rollout": 8.0}
"""Seconds that a median may reach."""


def whole(command: list[str]) -> float:
    """Seconds that a command takes."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begin


def first_rollout() -> float:
    """Seconds from the start of `gspo train` to its first rollout batch."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.time()
        command = [*GSPO, "train", "quickstart", "--steps", "1", "--out", folder, "--name", "start"]
        subprocess.run(command, check=True, capture_output=True)
        (log,) = Path(folder).rglob("perf.jsonl")
        rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    row = next(row for row in rows if row["kind"] == "rollout")
    return datetime.fromisoformat(row["time"]).timestamp() - row["batch_s"] - begin


VARIANTS: dict[str, Callable[[], float]] = {
    "interpreter": lambda: whole([sys.executable, "-c", "pass"]),
    "help": lambda: whole([*GSPO, "--help"]),
    "libraries": lambda: whole([sys.executable, "-c", LIBRARIES]),
    "first_rollout": first_rollout,
}


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="of everything (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the result is written")
    args = parser.parse_args()
    first_rollout()
    runs: list[dict[str, float]] = []
    for repeat in range(args.repeats):
        runs.append({name: VARIANTS[name]() for name in in_turn(list(VARIANTS), repeat)})
    found: dict[str, Any] = {name: spread([run[name] for run in runs]) for name in VARIANTS}
    for name, bare in (("help", "interpreter"), ("first_rollout", "libraries")):
        found[f"{name}_less_{bare}"] = spread([run[name] - run[bare] for run in runs])
        found[f"{name}_over_{bare}"] = spread([run[name] / run[bare] for run in runs])
    for name, value in found.items():
        print(f"{name:32} {shown(value)}")
    write(args.json, {"command": " ".join(["python", *sys.argv]), "summary": found, "limits": LIMITS, "runs": runs})
    late = [name for name, limit in LIMITS.items() if found[name]["median"] >= limit]
    sys.exit(f"slower than the limit: {', '.join(late)}" if late else 0)


if __name__ == "__main__":
    main()
