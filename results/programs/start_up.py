#!/usr/bin/env python3
"""How long the program takes to answer: `gspo --help`, and `gspo train` up to its first rollout.

    python results/programs/start_up.py --json OUT [--repeats 5]

Each repeat measures, there and back: the bare interpreter (`python -c pass`), `gspo --help`, the bare import of the
libraries that training needs (torch, and the tokenizer and model classes of transformers), and `gspo train quickstart
--steps 1` until its first rollout batch begins, where that process ends itself. One run comes before the first repeat,
so the cold start is in its cache; the evaluation before the first batch is part of the time. Seconds of the clock from
the start of the process, and of processor time, which other programs on the machine lengthen little.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import interleave, shown, spread, write

LIBRARIES = "import torch; from transformers import AutoTokenizer, Qwen3MoeForCausalLM"
LIMITS = {"help": 0.3, "first_rollout": 8.0}
"""Seconds that a median may reach."""


CLOCKS = ("clock", "processor")
Seconds = dict[str, float]
"""By clock: of the clock on the wall, and of the processor."""


def timed(name: str) -> dict[str, Seconds]:
    """What a variant takes; for the first rollout also the evaluation before it."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(VARIANTS[name], check=True, capture_output=True, text=True)
    end, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = {name: dict(zip(CLOCKS, (end - begin, spent), strict=True))}
    return found | ({"its evaluation": json.loads(done.stdout)} if name == "first_rollout" else {})


def until_first_rollout() -> None:
    """`gspo train` as a user starts it, in this process; it ends where the first rollout batch would begin."""
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["gspo", "train", "quickstart", "--steps", "1", "--out", folder, "--name", "start"]
        from gspo_cli.cli.main import run
        from gspo_cli.training import loop

        inner, spent = loop.evaluate, [0.0, 0.0]

        def evaluate(*args: Any, **kwargs: Any) -> None:
            begin = time.perf_counter(), time.process_time()
            inner(*args, **kwargs)
            spent[:] = time.perf_counter() - begin[0], time.process_time() - begin[1]

        def begins(*_: Any) -> None:
            print(json.dumps(dict(zip(CLOCKS, spent, strict=True))), flush=True)
            shutil.rmtree(folder)
            os._exit(0)

        loop.evaluate, loop.train_batch = evaluate, begins
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
    timed("first_rollout")
    runs: list[dict[str, Seconds]] = []
    for repeat in range(args.repeats):
        run: dict[str, Seconds] = {}
        for name in interleave(list(VARIANTS), repeat):
            run |= timed(name)
        runs.append(run)
    found: dict[str, Any] = {}
    for clock in CLOCKS:
        part: dict[str, Any] = {name: spread([run[name][clock] for run in runs]) for name in runs[0]}
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
