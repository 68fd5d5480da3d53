#!/usr/bin/env python3
"""How long the program takes to answer: `gspo --help`, and `gspo train` up to its first rollout.

    python tests/benchmarks/start_up.py --json OUT [--repeats 5]

Each repeat measures, there and back: the bare interpreter (`python -c pass`), `gspo --help`, the bare import of the
libraries that training needs (torch, and the tokenizer and model classes of transformers), and `gspo train quickstart
--steps 1` until its first rollout batch begins, where that process ends itself. One run comes before the first repeat,
so the cold start is in its cache; the evaluation before the first batch is part of the time. Seconds of the clock from
the start of the process, and of processor time, which other programs on the machine lengthen little.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import in_turn, shown, spread, write

LIBRARIES = "import torch; from transformers import AutoTokenizer, Qwen3MoeForCausalLM"
LIMITS = {"help": 0.3, "first_rollout": 8.0}
"""Seconds that a median may reach."""


Seconds = dict[str, float]
"""By clock: of the clock on the wall, and of the processor."""


def timed(command: list[str]) -> Seconds:
    """What a command takes."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    end, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"clock": end - begin, "processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def until_first_rollout() -> None:
    """`gspo train` as a user starts it, in this process; it ends where the first rollout batch would begin."""
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["gspo", "train", "quickstart", "--steps", "1", "--out", folder, "--name", "start"]
        from gspo_cli.cli.main import run
        from gspo_cli.training import loop

        def begins(*_: Any) -> None:
            sys.stdout.flush()
            shutil.rmtree(folder)
            os._exit(0)

        loop.train_batch = begins
        run()


VARIANTS: dict[str, list[str]] = {
    "interpreter": [sys.executable, "-c", "pass"],
    "help": [sys.executable, "-m", "gspo_cli", "--help"],
    "libraries": [sys.executable, "-c", LIBRARIES],
    "first_rollout": [sys.executable, __file__, "--until-first-rollout"],
}


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="of everything (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the result is written")
    parser.add_argument("--until-first-rollout", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.until_first_rollout:
        until_first_rollout()
    timed(VARIANTS["first_rollout"])
    runs: list[dict[str, Seconds]] = []
    for repeat in range(args.repeats):
        runs.append({name: timed(VARIANTS[name]) for name in in_turn(list(VARIANTS), repeat)})
    found: dict[str, Any] = {}
    for clock in ("clock", "processor"):
        part: dict[str, Any] = {name: spread([run[name][clock] for run in runs]) for name in VARIANTS}
        for name, bare in (("help", "interpreter"), ("first_rollout", "libraries")):
            part[f"{name} over {bare}"] = spread([run[name][clock] / run[bare][clock] for run in runs])
        for name, value in part.items():
            print(f"{clock:10} {name:30} {shown(value)}")
        found[clock] = part
    write(args.json, {"command": " ".join(["python", *sys.argv]), "summary": found, "limits": LIMITS, "runs": runs})
    late = [name for name, limit in LIMITS.items() if found["clock"][name]["median"] >= limit]
    sys.exit(f"slower than the limit: {', '.join(late)}" if late else 0)


if __name__ == "__main__":
    main()
