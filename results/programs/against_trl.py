#!/usr/bin/env python3
"""Time this project and TRL in turn on one workload: `--repeats` runs of each, the order swapped every time.

    python results/programs/against_trl.py MODEL_DIR PROMPTS.jsonl --ours-python PYTHON --peer-python PYTHON \\
        --repeats 5 --json OUT [any option of the two sides, such as --batches 10 --threads 2]

A side's figure in a repeat is its median seconds per rollout batch, warm-up left out; the ratio is ours / peer, taken
repeat by repeat (below 1: we are faster). Repeat r samples with seed r on both sides, so the range holds the spread of
response lengths too. Options that are not named here go to both sides unchanged.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCRIPTS = {"ours": HERE / "rollout_batch.py", "peer": HERE / "peer_trl.py"}

Result = dict[str, Any]
"""The JSON of one side, see README.md."""


def run_side(side: str, python: str, arguments: list[str]) -> Result:
    """One run of one side in a process of its own."""
    # Each side gets what its own environment has installed; PYTHONPATH is for ours, from a checkout.
    environment = {name: value for name, value in os.environ.items() if side == "ours" or name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [python, str(SCRIPTS[side]), *arguments, "--json", str(out)]
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{SCRIPTS[side].name} ended with {done.returncode}:\n{done.stderr[-4000:]}")
        result: Result = json.loads(out.read_text(encoding="utf-8"))
        return result


def differences(ours: Result, peer: Result, threads_too: bool) -> list[str]:
    """Settings, what was found in the model and versions of the common packages, where the two sides disagree."""
    keys = {part: ours[part].keys() | peer[part].keys() for part in ("settings", "found")}
    keys["versions"] = {"python", "torch", "transformers"}
    return [
        f"{part}.{key}: ours {ours[part].get(key)}, peer {peer[part].get(key)}"
        for part, names in keys.items()
        for key in sorted(names)
        if ours[part].get(key) != peer[part].get(key) and (threads_too or key != "threads")
    ]


def spread(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def timed_mean(result: Result, key: str) -> float:
    """Mean of a series over the timed batches."""
    return statistics.fmean(result[key][result["settings"]["warmup"] :])


def summary(runs: list[dict[str, Result]]) -> dict[str, Any]:
    """Median and range over the repeats of each phase on each side, their ratio, and how much work each side had."""
    sides: dict[str, Any] = {}
    for side in SCRIPTS:
        seconds = {
            phase: spread([run[side]["seconds_median"][phase] for run in runs])
            for phase in runs[0][side]["seconds_median"]
        }
        counts = ("response_length", "padding_share", "reward")
        means = {key: spread([timed_mean(run[side], key) for run in runs]) for key in counts}
        sides[side] = {"seconds": seconds, "work": means}
    return sides | {"ratio": spread([ratio(run) for run in runs])}


def ratio(run: dict[str, Result]) -> float:
    """Seconds per rollout batch, ours / peer, in one repeat."""
    return float(run["ours"]["seconds_median"]["batch"] / run["peer"]["seconds_median"]["batch"])


def print_summary(found: dict[str, Any]) -> None:
    """Medians by phase, both sides beside each other, and the work behind them."""
    for key, unit in (("seconds", "s"), ("work", "")):
        for name in found["ours"][key]:
            cells = [
                f"{v['median']:8.3f} [{v['min']:.3f}, {v['max']:.3f}]{unit}"
                for v in (found[side][key][name] for side in SCRIPTS)
            ]
            print(f"{name:16} ours {cells[0]:26} peer {cells[1]}")
    print("ratio ours / peer: {median:.3f} [{min:.3f}, {max:.3f}]".format(**found["ratio"]))


def main() -> None:
    """Alternate, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--ours-python", required=True, help="interpreter of this project's environment")
    parser.add_argument("--peer-python", required=True, help="interpreter of TRL's environment")
    for side in SCRIPTS:
        parser.add_argument(f"--{side}-threads", type=int, help="CPU threads of this side alone: its own best number")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each side (default %(default)s)")
    parser.add_argument("--json", type=Path, required=True, metavar="OUT", help="where all runs are written")
    args, arguments = parser.parse_known_args()
    pythons = {"ours": args.ours_python, "peer": args.peer_python}
    own = {side: vars(args)[f"{side}_threads"] for side in SCRIPTS}
    more = {side: ["--threads", str(threads)] if threads else [] for side, threads in own.items()}
    runs: list[dict[str, Result]] = []
    for repeat in range(args.repeats):
        order = list(SCRIPTS) if repeat % 2 == 0 else list(reversed(SCRIPTS))
        run = {side: run_side(side, pythons[side], [*arguments, *more[side], "--seed", str(repeat)]) for side in order}
        if unequal := differences(run["ours"], run["peer"], threads_too=not any(own.values())):
            sys.exit("not the same workload:\n" + "\n".join(unequal))
        runs.append(run)
        ours, peer = (run[side]["seconds_median"]["batch"] for side in SCRIPTS)
        print(f"repeat {repeat + 1}: ours {ours:.3f} s, peer {peer:.3f} s, ratio {ratio(run):.3f}", flush=True)
        args.json.write_text(json.dumps({"summary": summary(runs), "runs": runs}, indent=1) + "\n", encoding="utf-8")
    print_summary(summary(runs))


if __name__ == "__main__":
    main()
