#!/usr/bin/env python3
"""Judge a study of `same_curves.py`: are reward, held-out score, clip fractions and log-ratios the same in TRL?

    python results/programs/curves_report.py OUT --published FOLDER

Reads OUT/ALGO-sSEED-SIDE.json, uses the seeds that both sides have finished, and writes `same_curves.json` (the test),
`same_curves.csv` (the curves) and `same_curves.svg` (the figure) into FOLDER. No model is run.

The test: two one-sided t tests on the paired differences (ours minus TRL's) of the mean reward of a run, the area under
the curve, with a margin of 2 points, each at 5 %. They succeed where the 90 % interval lies within the margin.
"""

import argparse
import csv
import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from gspo_cli.report.figures.style import OTHER, colour
from gspo_cli.stats.curves import area_mean
from gspo_cli.stats.paired import is_flat, tost

MARGIN = 2.0
"""Points of reward (100 = every answer right)."""
PLANNED = 6
"""Seeds a side; with fewer the study is unfinished and says so."""
SIDES = ("ours", "peer")
CLIP = {"grpo": "updates/clip/token_frac", "gspo": "updates/clip/seq_frac"}
RATIO = {"grpo": "updates/ratio/token_log", "gspo": "updates/ratio/seq_log"}

Pair = dict[str, Any]
"""Side -> the JSON of one run."""


def read_pairs(out: Path) -> dict[str, dict[int, Pair]]:
    """Algorithm -> seed -> both sides; a seed that lacks one is left out."""
    pairs: dict[str, dict[int, Pair]] = {}
    for path in sorted(out.glob("*-s*-ours.json")):
        peer = path.with_name(path.name.replace("-ours.json", "-peer.json"))
        if peer.is_file():
            both = {
                side: json.loads(p.read_text(encoding="utf-8")) for side, p in zip(SIDES, (path, peer), strict=True)
            }
            if both["ours"]["settings"] != both["peer"]["settings"]:
                raise SystemExit(f"{path.name} and {peer.name} were not made with the same settings")
            settings = both["ours"]["settings"]
            pairs.setdefault(settings["algo"], {})[settings["seed"]] = both
    return pairs


def area(run: dict[str, Any]) -> float:
    """Mean of the reward curve over the run, in points."""
    rewards = np.array(run["series"]["reward/mean"])
    steps = np.arange(1, len(rewards) + 1)
    return 100 * area_mean(steps, rewards, 1, len(rewards))


def batch_means(run: dict[str, Any], name: str) -> list[float]:
    """A series of optimizer steps, as the mean of each rollout batch over those of its steps that have a value."""
    values, size = run["series"][name], run["settings"]["minibatches"]
    chunks = (values[i : i + size] for i in range(0, len(values), size))
    return [statistics.fmean([v for v in chunk if v is not None] or [math.nan]) for chunk in chunks]


def difference(pairs: Iterable[Pair], value: Any) -> dict[str, Any]:
    """Paired differences ours - TRL of one number a run: every one, their mean, and its 90 % interval."""
    values = [[value(pair[side]) for side in SIDES] for pair in pairs]
    found = [ours - peer for ours, peer in values]
    result: dict[str, Any] = {
        "ours": statistics.fmean(v[0] for v in values),
        "peer": statistics.fmean(v[1] for v in values),
        "differences": found,
        "mean": statistics.fmean(found),
        "interval_90": None,
    }
    if not is_flat(np.array(found)):
        error = statistics.stdev(found) / len(found) ** 0.5
        half = float(stats.t.isf(0.05, len(found) - 1)) * error
        result["interval_90"] = [result["mean"] - half, result["mean"] + half]
    return result


def judged(pairs: dict[int, Pair]) -> dict[str, Any]:
    """The equivalence test and everything that stands beside it, for one algorithm."""
    runs = list(pairs.values())
    algo, batches = runs[0]["ours"]["settings"]["algo"], runs[0]["ours"]["settings"]["batches"]
    reward = difference(runs, area)
    found = np.array(reward["differences"])
    p = None if is_flat(found) else max(tost(found, MARGIN))
    return {
        "seeds": sorted(pairs),
        "batches": batches,
        "finished": len(pairs) >= PLANNED,
        "reward_points": reward,
        "p_tost": p,
        "equivalent": p is not None and p < 0.05,
        "held_out_points": difference(runs, lambda run: 100 * run["held_out"]["average"]),
        "reward_last5_points": difference(runs, lambda run: 100 * statistics.fmean(run["series"]["reward/mean"][-5:])),
        "length_tokens": difference(runs, lambda run: statistics.fmean(run["series"]["length/mean"])),
        "clip_fraction": difference(runs, lambda run: float(np.nanmean(batch_means(run, CLIP[algo])))),
        "log_ratio_mean": difference(runs, lambda run: float(np.nanmean(batch_means(run, RATIO[algo] + "_mean")))),
        "log_ratio_std": difference(runs, lambda run: float(np.nanmean(batch_means(run, RATIO[algo] + "_std")))),
        "grad_norm": difference(runs, lambda run: float(np.nanmean(batch_means(run, "updates/grad/norm")))),
        "seconds": seconds(runs),
    }


def seconds(runs: list[Pair]) -> dict[str, Any]:
    """Clock seconds of the median batch, and processor seconds of the whole process, start included, per batch."""
    clock = {side: [statistics.median(run[side]["series"]["batch_s"]) for run in runs] for side in SIDES}
    result: dict[str, Any] = {side: {"clock_median": statistics.median(clock[side])} for side in SIDES}
    result["ratio_clock"] = statistics.median(a / b for a, b in zip(clock["ours"], clock["peer"], strict=True))
    known = [run for run in runs if all(run[side]["cpu_s"] for side in SIDES)]
    if known:
        cpu = {side: [run[side]["cpu_s"] / run[side]["settings"]["batches"] for run in known] for side in SIDES}
        for side in SIDES:
            result[side]["processor"] = statistics.median(cpu[side])
        result["ratio_processor"] = statistics.median(a / b for a, b in zip(cpu["ours"], cpu["peer"], strict=True))
    return result


def rows(pairs: dict[str, dict[int, Pair]]) -> list[dict[str, Any]]:
    """One row a run and rollout batch."""
    found = []
    for algo, by_seed in pairs.items():
        for seed, pair in sorted(by_seed.items()):
            for side in SIDES:
                series = pair[side]["series"]
                clip, ratio = batch_means(pair[side], CLIP[algo]), batch_means(pair[side], RATIO[algo] + "_mean")
                spread = batch_means(pair[side], RATIO[algo] + "_std")
                for i, reward in enumerate(series["reward/mean"]):
                    found.append({
                        "algorithm": algo, "seed": seed, "trainer": "gspo" if side == "ours" else "trl", "batch": i + 1,
                        "reward": f"{reward:.6g}", "response_tokens": f"{series['length/mean'][i]:.6g}",
                        "clip_fraction": f"{clip[i]:.6g}", "log_ratio_mean": f"{ratio[i]:.6g}",
                        "log_ratio_std": f"{spread[i]:.6g}", "batch_seconds": f"{series['batch_s'][i]:.4g}",
                    })  # fmt: skip
    return found


PANELS = {"reward": "reward", "clip_fraction": "clip fraction", "log_ratio_mean": "mean log-ratio, nats"}


def draw(table: list[dict[str, Any]], path: Path) -> None:
    """One row of panels an algorithm, in its colour, TRL in grey: every seed thin, the mean of the seeds thick."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "gspo"  # the same bytes for the same numbers
    import matplotlib.pyplot as plt

    algos = list(dict.fromkeys(row["algorithm"] for row in table))
    figure, axes = plt.subplots(len(algos), len(PANELS), figsize=(11, 3 * len(algos)), squeeze=False)
    for line, algo in zip(axes, algos, strict=True):
        for axis, (column, title) in zip(line, PANELS.items(), strict=True):
            for trainer, color, dash in (("trl", OTHER, "--"), ("gspo", colour(algo), "-")):
                mine = [row for row in table if row["algorithm"] == algo and row["trainer"] == trainer]
                seeds = sorted({row["seed"] for row in mine})
                curves = [[float(row[column]) for row in mine if row["seed"] == seed] for seed in seeds]
                batches = range(1, len(curves[0]) + 1)
                for curve in curves:
                    axis.plot(batches, curve, color=color, alpha=0.3, linewidth=0.7)
                mean = np.nanmean(np.array(curves), axis=0)
                name = "TRL 1.16" if trainer == "trl" else f"{algo.upper()} here"
                axis.plot(batches, mean, color=color, linestyle=dash, linewidth=1.8, label=name)
            axis.set_title(f"{algo.upper()}: {title}", fontsize=10)
            axis.set_xlabel("rollout batch")
            axis.spines[["top", "right"]].set_visible(False)
        line[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def sentence(algo: str, found: dict[str, Any]) -> str:
    """The result in words."""
    reward, n = found["reward_points"], len(found["seeds"])
    start = (
        f"{algo.upper()}, {n} seed{'s' * (n > 1)}: mean reward {reward['ours']:.2f} here, {reward['peer']:.2f} in TRL"
    )
    if reward["interval_90"] is None:
        return f"{start}; one seed says nothing about equivalence."
    low, high = reward["interval_90"]
    verdict = f"within {MARGIN:g} points" if found["equivalent"] else f"not shown to be within {MARGIN:g} points"
    return f"{start}; difference {reward['mean']:+.2f} points, 90 % interval [{low:.2f}, {high:.2f}]: {verdict}."


def main() -> None:
    """Read, judge, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder that same_curves.py filled")
    parser.add_argument("--published", type=Path, metavar="FOLDER", help="where the three files are written")
    args = parser.parse_args()
    pairs = read_pairs(args.out)
    if not pairs:
        raise SystemExit(f"{args.out} holds no seed that both sides have finished")
    result = {algo: judged(by_seed) for algo, by_seed in pairs.items()}
    for algo, found in result.items():
        print(sentence(algo, found))
        if not found["finished"]:
            print(f"  unfinished: {len(found['seeds'])} of {PLANNED} seeds")
    if args.published:
        args.published.mkdir(parents=True, exist_ok=True)
        versions = {side: pair[side].get("versions") for by in pairs.values() for pair in by.values() for side in SIDES}
        whole = {"margin_points": MARGIN, "planned_seeds": PLANNED, "versions": versions, "algorithms": result}
        text = json.dumps(whole, indent=1, allow_nan=False)
        (args.published / "same_curves.json").write_text(text + "\n", encoding="utf-8")
        table = rows(pairs)
        with (args.published / "same_curves.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)
        draw(table, args.published / "same_curves.svg")


if __name__ == "__main__":
    main()
