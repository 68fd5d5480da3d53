#!/usr/bin/env python3
"""How long does grading programs take, against LiveCodeBench's own evaluator, and do the verdicts agree?

    python results/programs/against_livecodebench.py CHECKOUT CASES [--workers 2] [--repeats 1]

CHECKOUT is a clone of LiveCodeBench/LiveCodeBench (28fef95; `numpy` and `tqdm` suffice), CASES a file as
`gspo eval grade` takes it. Both sides are timed as whole processes, one after the other. The evaluator has no sandbox
of its own, so that it runs in one from outside, once: that costs it nothing. One JSON object a repeat on standard
output; `differences` holds (id, theirs, ours).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CODES = {-2: "wrong_answer", -3: "time_limit", -4: "runtime_error", -5: "runner_error"}
PEER = """
import json, os, sys
checkout, cases, out, workers = sys.argv[1:]
sys.path.insert(0, checkout)
from lcb_runner.evaluation.compute_code_generation_metrics import evaluate_generations
if __name__ == "__main__":
    rows = [json.loads(line) for line in open(cases, encoding="utf-8") if line.strip()]
    samples = [{"input_output": json.dumps(row["tests"])} for row in rows]
    _, metadata = evaluate_generations(samples, [[row["code"]] for row in rows], num_process_evaluate=int(workers))
    with open(out, "w") as file:
        json.dump([metadata[i][0].get("error_code") for i in range(len(rows))], file)
"""


def evaluator(args: argparse.Namespace, folder: Path) -> tuple[float, list[str]]:
    """(seconds, verdicts) of the official evaluator."""
    script, out = folder / "peer.py", folder / "codes.json"
    script.write_text(PEER, encoding="utf-8")
    shown = [args.checkout, args.cases, Path(sys.prefix), script]
    binds = [part for path in shown for part in ("--ro-bind", str(path), str(path))]
    command = [
        "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/", "/", "--dev", "/dev",
        "--proc", "/proc", "--tmpfs", "/tmp", *binds, "--bind", str(folder), str(folder), "--chdir", "/tmp",
        "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "OMP_NUM_THREADS", "1",
        sys.executable, str(script), str(args.checkout), str(args.cases), str(out), str(args.workers),
    ]  # fmt: skip
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    seconds = time.perf_counter() - start
    return seconds, [CODES.get(code, "accepted") for code in json.loads(out.read_text())]


def ours(args: argparse.Namespace) -> tuple[float, list[str]]:
    """(seconds, verdicts) of `gspo eval grade`, its sandbox included."""
    command = [
        sys.executable, "-m", "gspo_cli", "eval", "grade", str(args.cases), "--grader", "official",
        "--workers", str(args.workers), "--json",
    ]  # fmt: skip
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    seconds = time.perf_counter() - start
    return seconds, [json.loads(line)["verdict"] for line in done.stdout.splitlines()]


def compare(args: argparse.Namespace, ids: list[str], first: bool) -> dict[str, Any]:
    """Both sides once; who begins changes from repeat to repeat."""
    with tempfile.TemporaryDirectory(prefix="gspo-benchmark-") as folder:
        sides = [lambda: evaluator(args, Path(folder)), lambda: ours(args)]
        found = [side() for side in (sides if first else reversed(sides))]
    (theirs_s, theirs), (ours_s, own) = found if first else reversed(found)
    differ = [(i, a, b) for i, a, b in zip(ids, theirs, own, strict=True) if a != b]
    return {
        "cases": len(ids),
        "workers": args.workers,
        "evaluator_s": round(theirs_s, 1),
        "gspo_s": round(ours_s, 1),
        "ratio": round(ours_s / theirs_s, 2),
        "differences": differ,
    }


def main() -> None:
    """Measures both, as often as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    args.checkout, args.cases = args.checkout.resolve(), args.cases.resolve()
    ids = [json.loads(line)["id"] for line in args.cases.read_text(encoding="utf-8").splitlines() if line.strip()]
    for repeat in range(args.repeats):
        print(json.dumps(compare(args, ids, first=repeat % 2 == 0)), flush=True)


if __name__ == "__main__":
    main()
