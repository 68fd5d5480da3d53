#!/usr/bin/env python3
"""The study of router noise: its numbers and figure from the published logs, as results/published/router_noise/PLAN.md
says, offline and in less than a minute.

    python results/programs/noise_study.py results/published/router_noise/logs --out results/published/router_noise

LOGS has a folder per cell (`short-0.2`) with `final.tar.xz` and `tuning.json`, and one per repetition on other start
models and seeds (`repeat-0.2`, short rows). Writes `runs.csv` (a row per run),
`study.json` (primaries, cells, controls, tuned settings), `tables.md` (the same for readers) and the figure. Cells that
are missing are named, not guessed.
S = seeds, C = cells
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from gspo_cli import load_study
from gspo_cli.report.figures import style
from gspo_cli.runlog.strict_json import read_object
from gspo_cli.stats.paired import holm

STEPS, LAST, SEEDS = 120, 30, 10
CELLS = [("short", 0.0), ("short", 0.1), ("short", 0.2), ("short", 0.4), ("long", 0.0), ("long", 0.2)]
PAIRS = {"published": ("gspo_published", "grpo_published"), "tuned": ("gspo", "grpo")}
MARGIN = 2.0
OUTCOMES = {"end": "mean reward of the last 30 batches", "area": "mean reward of all batches", "held_out": "avg@4"}


def cell_runs(logs: Path, planned: int = STEPS, last: int = LAST) -> pd.DataFrame:
    """A row per run of a cell: what is judged, and what explains it. Rewards are in points."""
    with tempfile.TemporaryDirectory() as scratch:
        study = load_study(logs, Path(scratch))
        steps = study.steps
        starts = {(r.arm, r.seed): read_object(r.folder / "run.json")["model_sha256"][:8] for r in study.runs}
        codes = [read_object(r.folder / "run.json")["code"] for r in study.runs]
        commits = {code.get("commit") or code["sha256"] for code in codes}  # of the package, where it was installed
    rows = []
    for (arm, seed), of_run in steps.groupby(["arm", "seed"]):
        batches = of_run[of_run["step"] > 0].set_index("step")
        logged = 100 * batches["reward/mean"].dropna()
        reward = logged.reindex(range(1, planned + 1)).ffill()  # a run that a guard stopped keeps its last value
        rows.append({
            "arm": arm, "seed": seed, "start": starts[arm, seed], "batches": len(logged),
            "end": reward[-last:].mean(), "area": reward.mean(),
            "held_out": 100 * batches["arithmetic/avg@4"].dropna().iloc[-1],
            "below_start": bool(reward[-planned // 10 :].mean() < reward[:3].mean()),
            "spread": batches["ratio/token_log_std"].median(), "discarded": batches["clip/token_frac"].mean(),
            "largest_gradient": batches["grad/norm"].max(), "length": batches["length/mean"].mean(),
            "slots": batches["moe/noise_slot_churn"].mean() if "moe/noise_slot_churn" in batches else 0.0,
        })  # fmt: skip
    assert len(commits) == 1, "the cell's runs were trained by different commits"
    return pd.DataFrame(rows).assign(commit=commits.pop())


def interval(D_S: np.ndarray) -> dict[str, Any]:
    """Mean with Student's 95 % interval and two-sided p; and whether the mean is within the margin (both one-sided
    tests at 5 %)."""
    test = stats.ttest_1samp(D_S, 0.0)
    low, high = test.confidence_interval(0.95)
    inside = max(
        stats.ttest_1samp(D_S, -MARGIN, alternative="greater").pvalue,
        stats.ttest_1samp(D_S, MARGIN, alternative="less").pvalue,
    )
    found = {"n": len(D_S), "mean": D_S.mean(), "sd": D_S.std(ddof=1), "low": low, "high": high, "p": test.pvalue}
    return {key: float(value) for key, value in found.items()} | {"p_equal": float(inside)}


def both_levels(D_S: pd.Series, start_S: pd.Series) -> dict[str, Any]:
    """Over pairs of runs, and over the means of the start models."""
    return {"pairs": interval(D_S.to_numpy()), "starts": interval(D_S.groupby(start_S).mean().to_numpy())}


def differences(runs: pd.DataFrame, pair: tuple[str, str], outcome: str) -> pd.Series:
    """Treatment minus baseline by seed, in one cell."""
    table = runs.pivot(index="seed", columns="arm", values=outcome)
    return table[pair[0]] - table[pair[1]]


def slopes(runs: pd.DataFrame, pair: tuple[str, str], outcome: str = "end") -> pd.Series:
    """By seed: the least-squares slope of the difference on log(1 + p), p = percent of the slots, over the short cells.

    In points per unit of log(1 + p): from 0 to 40 % are 3.71 units.
    """
    short = runs[runs["rows"] == "short"]
    table = pd.DataFrame({noise: differences(cell, pair, outcome) for noise, cell in short.groupby("noise")})
    x_C = np.log1p(100 * table.columns.to_numpy(float))
    centred_C = x_C - x_C.mean()
    return (table * centred_C).sum(axis=1) / (centred_C**2).sum()


def analyse(runs: pd.DataFrame, tuned: dict[str, Any]) -> dict[str, Any]:
    """Everything that the page says."""
    cells = {(rows, noise): cell for (rows, noise), cell in runs.groupby(["rows", "noise"])}
    start_S = runs.drop_duplicates("seed").set_index("seed")["start"].sort_index()
    primaries: dict[str, Any] = {}
    if all(("short", noise) in cells for noise in (0.0, 0.1, 0.2, 0.4)):
        slope = {outcome: both_levels(slopes(runs, PAIRS["tuned"], outcome), start_S) for outcome in OUTCOMES}
        primaries["slope"] = slope.pop("end") | {"beside": slope}
    if ("short", 0.2) in cells:
        judged = differences(cells["short", 0.2], PAIRS["published"], "end")
        primaries["published_at_20"] = both_levels(judged, start_S)
    for found, p in zip(primaries.values(), adjusted([f["pairs"]["p"] for f in primaries.values()], 2), strict=True):
        found["p_holm"] = p
    table = [
        {"rows": rows, "noise": noise, "pair": name, "spread": cell["spread"].median()}
        | {outcome: both_levels(differences(cell, pair, outcome), start_S) for outcome in OUTCOMES}
        for name, pair in PAIRS.items()
        for (rows, noise), cell in cells.items()
    ]
    for name in PAIRS:
        mine = [row for row in table if row["pair"] == name]
        for row, p in zip(mine, adjusted([row["end"]["pairs"]["p"] for row in mine], len(CELLS)), strict=True):
            row["p_holm"] = p
    controls = [
        {"rows": rows, "noise": noise, "arm": arm} | interval(differences(cell, (arm, "reinforce"), "end").to_numpy())
        for (rows, noise), cell in cells.items()
        for arm in ("grpo", "gspo")
    ]
    arms = runs.groupby(["rows", "noise", "arm"], sort=False)
    summary = arms[["end", "area", "held_out", "spread", "discarded", "length", "slots"]].mean()
    summary["ended_below_start"] = arms["below_start"].sum()
    summary["largest_gradient"] = arms["largest_gradient"].max()
    return {
        "missing_cells": [f"{rows}-{noise:g}" for rows, noise in CELLS if (rows, noise) not in cells],
        "commits": sorted(set(runs["commit"])), "primaries": primaries, "cells": table, "against_reinforce": controls,
        "arms": json.loads(summary.reset_index().to_json(orient="records")), "tuned": tuned,
    }  # fmt: skip


def repeated(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """A cell's comparisons on other start models and seeds; without a correction, as each was planned alone."""
    start_S = runs.drop_duplicates("seed").set_index("seed")["start"].sort_index()
    here = {name: pair for name, pair in PAIRS.items() if set(pair) <= set(runs["arm"])}
    return [
        {"pair": name, "ended_below_start": runs.groupby("arm")["below_start"].sum()[list(pair)].to_list()}
        | {outcome: both_levels(differences(runs, pair, outcome), start_S) for outcome in OUTCOMES}
        for name, pair in here.items()
    ]


def adjusted(p: list[float], planned: int) -> list[float]:
    """Holm over all planned tests: those of cells that are missing count, as if they had shown nothing."""
    return [float(holm({i: p[i] if i < len(p) else 1.0 for i in range(planned)})[i]) for i in range(len(p))]


def tables(result: dict[str, Any]) -> str:
    """The tables of the published page, in markdown. Differences are GSPO minus GRPO in points."""

    def points(found: dict[str, Any]) -> str:
        return f"{found['mean']:+.1f} [{found['low']:.1f}, {found['high']:.1f}]"

    def settings(chosen: dict[str, Any]) -> str:
        clip = f"clip {chosen['clip.low']:g}/{chosen['clip.high']:g}, " if "clip.low" in chosen else ""
        dual = f"dual clip {chosen['dual_clip']:g}, " if chosen.get("dual_clip") else ""
        return f"{clip}{dual}rate {chosen['lr']:g}"

    names = {"slope": "slope on log(1 + noise)", "published_at_20": "as published, 20 %"}
    lines = ["| primary | over pairs of runs | over start models | p, Holm over two |", "|---|---|---|---|"]
    lines += [
        f"| {names[name]} | {points(found['pairs'])} | {points(found['starts'])} | {found['p_holm']:.2g} |"
        for name, found in result["primaries"].items()
    ]
    for outcome, found in result["primaries"].get("slope", {}).get("beside", {}).items():
        name = f"beside it: slope of the {outcome.replace('_', '-')} difference"
        lines.append(f"| {name} | {points(found['pairs'])} | {points(found['starts'])} | no test |")
    head = ["cell", "arms", "final reward", "over start models", "area", "held out", "p, Holm over six"]
    head += ["spread of the token log-ratio"]
    lines += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in result["cells"]:
        end, *others = (points(row[outcome]["pairs"]) for outcome in OUTCOMES)
        outcomes = " | ".join([end, points(row["end"]["starts"]), *others])
        cell = f"{row['rows']}, {100 * row['noise']:g} %"
        lines.append(f"| {cell} | {row['pair']} | {outcomes} | {row['p_holm']:.2g} | {row['spread']:.2f} |")
    head = ["cell", "arm", "final reward", "area", "held out", "ended below its start"]
    head += ["largest mean gradient norm of a batch", "discarded", "chosen"]
    lines += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in result["arms"]:
        chosen = settings(result["tuned"][f"{row['rows']}-{row['noise']:g}"][row["arm"]])
        values = f"{row['end']:.1f} | {row['area']:.1f} | {row['held_out']:.1f} | {row['ended_below_start']}"
        discarded = "n/a" if row["discarded"] is None else f"{100 * row['discarded']:.1f} %"
        cell = f"{row['rows']}, {100 * row['noise']:g} %"
        lines.append(f"| {cell} | {row['arm']} | {values} | {row['largest_gradient']:.3g} | {discarded} | {chosen} |")
    lines += ["", "| cell | arm minus REINFORCE, final reward | |", "|---|---|---|"]
    for row in result["against_reinforce"]:
        lines.append(f"| {row['rows']}, {100 * row['noise']:g} % | {row['arm']} | {points(row)} |")
    if result["repeats"]:
        lines += [
            "",
            "| repeated on other start models and seeds | arms | final reward | over start models | area | held out |",
        ]
        lines += ["|---" * 6 + "|"]
    for name, pairs in result["repeats"].items():
        for row in pairs:
            end, *others = (points(row[outcome]["pairs"]) for outcome in OUTCOMES)
            outcomes = " | ".join([end, points(row["end"]["starts"]), *others])
            lines.append(f"| {name} | {row['pair']} | {outcomes} |")
    return "\n".join(lines) + "\n"


def figure(runs: pd.DataFrame, result: dict[str, Any], stem: Path) -> None:
    """Spread of the token log-ratio against the paired difference in final reward: every seed, mean and interval.

    The two comparisons have an axis each: the tuned differences are a tenth of the published ones.
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullLocator

    looks = {"published": ("#666666", "o", "as published (rate tuned)"), "tuned": ("#D55E00", "s", "tuned")}
    titles = {"short": "rows of 3 to 5 digits", "long": "rows of 8 to 11 digits"}
    panels = [rows for rows in titles if rows in set(runs["rows"])]
    with style.applied():
        size = (4.2 * len(panels), 4.6)
        fig, axes = plt.subplots(2, len(panels), figsize=size, sharex="col", sharey="row", squeeze=False)
        for column, rows in enumerate(panels):
            for ax, (pair, (colour, marker, label)) in zip(axes[:, column], looks.items(), strict=True):
                ax.axhspan(-MARGIN, MARGIN, color="#e6e6e6", zorder=0)
                ax.axhline(0, color="#999999", linewidth=0.6, zorder=1)
                ticks = {}
                for cell in (c for c in result["cells"] if c["rows"] == rows and c["pair"] == pair):
                    mine = runs[(runs["rows"] == rows) & (runs["noise"] == cell["noise"])]
                    x, found = cell["spread"], cell["end"]["pairs"]
                    dots = differences(mine, PAIRS[pair], "end")
                    ax.plot([x / 1.06] * len(dots), dots, marker, color=colour, alpha=0.3, markersize=2.5, zorder=2)
                    ax.vlines(x, found["low"], found["high"], color=colour, linewidth=1.2, zorder=3)
                    ax.plot(x, found["mean"], marker, color=colour, markersize=4, zorder=4)
                    ticks[x] = f"{x:.2g}\n{100 * cell['noise']:g} %"
                ax.set_xscale("log")
                ax.set_xlim(min(ticks) / 1.3, max(ticks) * 1.3)
                ax.xaxis.set_minor_locator(NullLocator())
                ax.set_xticks(list(ticks), list(ticks.values()))
                ax.set_title(f"{label}: {titles[rows]}", fontsize=8)
            axes[1][column].set_xlabel("spread of the token log-ratio [nats]; router noise")
        n = int(result["cells"][0]["end"]["pairs"]["n"])
        fig.supylabel("GSPO minus GRPO, final reward [points]", fontsize=8)
        text = f"quickstart MoE, {n} seeds on 5 start models, tuned in every cell"
        fig.text(0.99, 0, text, ha="right", va="top", fontsize=6.5, color="#444444")
        for suffix in ("svg", "png"):
            date = {"Date": None} if suffix == "svg" else None
            fig.savefig(stem.with_suffix(f".{suffix}"), dpi=200, bbox_inches="tight", metadata=date)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    found, tuned = [], {}
    for rows, noise in CELLS:
        folder = arguments.logs / f"{rows}-{noise:g}"
        if (folder / "final.tar.xz").is_file():
            found.append(cell_runs(folder / "final.tar.xz").assign(rows=rows, noise=noise))
            tuning = read_object(folder / "tuning.json")
            tuned[folder.name] = {arm: about["chosen"] for arm, about in tuning["arms"].items()}
    if not found:
        parser.error(f"no cell in {arguments.logs} has a final.tar.xz: none is complete")
    runs = pd.concat(found, ignore_index=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    result = analyse(runs, tuned)
    again = sorted(arguments.logs.glob("repeat-*/final.tar.xz"))
    result["repeats"] = {path.parent.name: repeated(cell_runs(path)) for path in again}
    runs.round(6).to_csv(arguments.out / "runs.csv", index=False)
    (arguments.out / "study.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (arguments.out / "tables.md").write_text(tables(result), encoding="utf-8")
    figure(runs, result, arguments.out / "study")
    for name, primary in result["primaries"].items():
        print(name, {k: round(v, 3) for k, v in primary["pairs"].items()}, "Holm p", round(primary["p_holm"], 4))


if __name__ == "__main__":
    main()
