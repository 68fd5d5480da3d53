#!/usr/bin/env python3
"""Mutated files for every reader: no exception but GspoError, and how long and how much memory it took.

    python results/programs/file_fuzz.py [--cases 20000] [--seed 0] [--only NAME ...] [--json OUT]

Prints each fault once for each place that it comes from, then the counts. `tests/fuzz` runs a few of the same cases.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "fuzz"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from fuzzing import fault_of
from readers import model_readers, small_readers

GIB = 1 << 30
MEMORY = 12 * GIB
MODEL_SHARE = 0.1
"""Of the cases; loading a model takes a hundred times as long as reading a row."""


def main() -> None:
    """Runs the cases; exit code 1 if one shows a fault."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))  # whoever needs more fails
    with tempfile.TemporaryDirectory() as base:
        os.environ["HF_DATASETS_CACHE"] = f"{base}/datasets"
        small, model = small_readers(), model_readers(Path(base))
        readers = {name: reader for name, reader in (small | model).items() if not args.only or name in args.only}
        weight = {n: (1 - MODEL_SHARE) / len(small) if n in small else MODEL_SHARE / len(model) for n in readers}
        total = sum(weight.values())
        seen, table = set(), []
        for name, reader in readers.items():
            folder = Path(base, "case", name.replace(" ", "-"))
            folder.mkdir(parents=True)
            number, faults, slowest, start = round(args.cases * weight[name] / total), 0, 0.0, time.perf_counter()
            for case in range(number):
                before = time.perf_counter()
                fault = fault_of(reader, args.seed + case, folder)
                slowest = max(slowest, time.perf_counter() - before)
                faults += bool(fault)
                place = "\n".join(line for line in fault.splitlines() if line.startswith(("  File", "    "))) or fault
                if fault and place not in seen:
                    seen.add(place)
                    print(f"--- {name}, case {args.seed + case}\n{fault}", flush=True)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            row = {"reader": name, "cases": number, "faults": faults, "seconds": round(time.perf_counter() - start, 1),
                   "slowest_s": round(slowest, 2), "peak_gib": round(peak / GIB, 2)}  # fmt: skip
            table.append(row)
            print(json.dumps(row), flush=True)
    result: dict[str, Any] = {key: sum(row[key] for row in table) for key in ("cases", "faults")} | {"table": table}
    print(json.dumps({key: result[key] for key in ("cases", "faults")}))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.exit(bool(result["faults"]))


if __name__ == "__main__":
    main()
