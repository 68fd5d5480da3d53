#!/usr/bin/env python3
"""The study of trust regions: its tables from the logs, as results/published/trust_regions/PLAN.md says, offline.

    python results/programs/trust_regions.py results/trust-regions --out results/published/trust_regions

LOGS has a folder per cell (`8-0.2`: mini-batches, router noise), as cell.sh leaves it, or with `final.tar.xz` and
`tuning.json`; beside the final runs, `again` holds the same arms on other seeds and start models. Prints the tables,
and writes them (`tables.md`) with `runs.csv`, a row per run, and a figure. Missing cells are named.
S = seeds
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from noise_study import MARGIN, adjusted, cell_runs, interval

from gspo_cli.report.figures import style
from gspo_cli.runlog.strict_json import read_object

CELLS = ["8-0.2", "8-0", "1-0.2", "1-0"]
PRIMARY = CELLS[0]
BASELINE = "grpo"
ARMS = ["grpo_dual", "gspo", "cispo", "dppo_tv", "ipo", "vespo", "reinforce"]
STEPS = 40
OUTCOMES = {"end": "final reward", "area": "area", "held_out": "held out"}


def read_runs(folder: Path, name: str, steps: int) -> pd.DataFrame | None:
    """The runs of a cell's study; None if it was not trained."""
    packed = folder / f"{name}.tar.xz"
    if not packed.is_file() and not (folder / name).is_dir():
        return None
    runs = cell_runs(packed if packed.is_file() else folder / name, steps, max(1, steps // 4))
    return runs.assign(cell=folder.name, study=name)


def read_chosen(folder: Path) -> dict[str, Any]:
    """What each arm of a cell chose."""
    tuning = folder / "tuning.json"
    chosen = read_object(tuning if tuning.is_file() else folder / "tuning" / "tuning.json")["arms"]
    return {arm: about["chosen"] for arm, about in chosen.items()}


def against_baseline(runs: pd.DataFrame, arm: str, outcome: str) -> np.ndarray:
    """Arm minus GRPO by seed: [S]."""
    by_seed = runs.pivot(index="seed", columns="arm", values=outcome)
    return (by_seed[arm] - by_seed[BASELINE]).to_numpy()


def verdict(p_holm: float, found: dict[str, Any]) -> str:
    """In the plan's words."""
    if p_holm < 0.05:
        return "better" if found["mean"] > 0 else "worse"
    return f"equal within {MARGIN:g}" if found["p_equal"] < 0.05 else "undecided"


def in_words(cell: str) -> str:
    minibatches, noise = cell.split("-")
    return f"{minibatches} mini-batch{'es' if minibatches != '1' else ''}, {100 * float(noise):g} % router noise"


def points(found: dict[str, Any]) -> str:
    return f"{found['mean']:+.1f} [{found['low']:.1f}, {found['high']:.1f}]"


def cell_tables(cell: str, runs: pd.DataFrame, chosen: dict[str, Any]) -> list[str]:
    """Each arm against GRPO, with Holm over the cell's seven; then every arm alone."""
    found = {arm: {o: interval(against_baseline(runs, arm, o)) for o in OUTCOMES} for arm in ARMS}
    # without a spread there is no p: arms that are the same algorithm in a cell have equal runs
    p_holm = adjusted([float(np.nan_to_num(found[arm]["end"]["p"], nan=1.0)) for arm in ARMS], len(ARMS))
    lines = [f"### {in_words(cell)}{' (primary)' if cell == PRIMARY else ''}", ""]
    lines += [f"| minus GRPO | {' | '.join(OUTCOMES.values())} | p, Holm over seven | verdict |", "|---" * 6 + "|"]
    for arm, p in zip(ARMS, p_holm, strict=True):
        values = " | ".join(points(found[arm][outcome]) for outcome in OUTCOMES)
        lines.append(f"| {arm} | {values} | {p:.2g} | {verdict(p, found[arm]['end'])} |")
    head = [*OUTCOMES.values(), "ended below its start", "largest gradient norm", "spread of log w", "discarded"]
    lines += ["", f"| arm | {' | '.join(head)} | chosen |", "|---" * (len(head) + 2) + "|"]
    for arm in [BASELINE, *ARMS]:
        mine = runs[runs["arm"] == arm]
        mean = mine[[*OUTCOMES, "spread", "discarded"]].mean()
        cells = [f"{mean[outcome]:.1f}" for outcome in OUTCOMES]
        cells += [f"{mine['below_start'].sum()} of {len(mine)}", f"{mine['largest_gradient'].max():.3g}"]
        cells += ["n/a" if np.isnan(mean[x]) else f"{mean[x]:.3g}" for x in ("spread", "discarded")]
        settings = ", ".join(f"{key} {value:g}" for key, value in chosen[arm].items())
        lines.append(f"| {arm} | {' | '.join(cells)} | {settings} |")
    return [*lines, ""]


def change_table(cells: dict[str, pd.DataFrame]) -> list[str]:
    """How the primary cell's differences differ from those of its neighbours, by seed; without a test."""
    others = [cell for cell in ("8-0", "1-0.2") if cell in cells]
    if PRIMARY not in cells or not others:
        return []
    lines = ["### Arm minus GRPO: primary cell minus another, final reward", ""]
    lines += [f"| arm | {' | '.join(f'minus {cell}' for cell in others)} |", "|---" * (len(others) + 1) + "|"]
    for arm in ARMS:
        here = against_baseline(cells[PRIMARY], arm, "end")
        values = [points(interval(here - against_baseline(cells[cell], arm, "end"))) for cell in others]
        lines.append(f"| {arm} | {' | '.join(values)} |")
    return [*lines, ""]


def again_table(cell: str, runs: pd.DataFrame) -> list[str]:
    """Arms of a cell on other seeds and start models, at the same settings."""
    lines = [f"### {in_words(cell)}, again: seeds {runs['seed'].min()} to {runs['seed'].max()}", ""]
    lines += [f"| minus GRPO | {' | '.join(OUTCOMES.values())} |", "|---" * 4 + "|"]
    for arm in [arm for arm in ARMS if arm in set(runs["arm"])]:
        lines.append(
            f"| {arm} | {' | '.join(points(interval(against_baseline(runs, arm, outcome))) for outcome in OUTCOMES)} |"
        )
    return [*lines, ""]


def figure(cells: dict[str, pd.DataFrame], stem: Path) -> None:
    """A panel per cell, each with an axis of its own: every seed's difference, its mean and 95 % interval."""
    import matplotlib.pyplot as plt

    with style.applied():
        fig, axes = plt.subplots(2, 2, figsize=(7.2, 5.2), sharey=True)
        for ax, (cell, runs) in zip(axes.flat, cells.items(), strict=False):
            ax.axvspan(-MARGIN, MARGIN, color="#e6e6e6", zorder=0)
            ax.axvline(0, color="#999999", linewidth=0.6, zorder=1)
            for place, arm in enumerate(ARMS):
                D_S, colour = against_baseline(runs, arm, "end"), "#0072B2"
                found = interval(D_S)
                ax.plot(D_S, [place + 0.2] * len(D_S), "o", color=colour, alpha=0.35, markersize=2.5, zorder=2)
                ax.hlines(place, found["low"], found["high"], color=colour, linewidth=1.2, zorder=3)
                ax.plot(found["mean"], place, "s", color=colour, markersize=4, zorder=4)
            ax.set_yticks(range(len(ARMS)), ARMS)
            ax.set_ylim(len(ARMS) - 0.5, -0.5)
            ax.set_title(in_words(cell), fontsize=8)
        for ax in axes.flat[len(cells) :]:
            ax.set_visible(False)
        fig.supxlabel("arm minus GRPO, final reward [points]", fontsize=8)
        fig.tight_layout()
        for suffix in ("svg", "png"):
            date = {"Date": None} if suffix == "svg" else None
            fig.savefig(stem.with_suffix(f".{suffix}"), dpi=200, bbox_inches="tight", metadata=date)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=STEPS, help="rollout batches of a run; a smoke run has 2")
    arguments = parser.parse_args()
    found, lines, repeats = dict[str, pd.DataFrame](), list[str](), list[pd.DataFrame]()
    for cell in CELLS:
        folder = arguments.logs / cell
        if (runs := read_runs(folder, "final", arguments.steps)) is not None:
            found[cell] = runs
            lines += cell_tables(cell, runs, read_chosen(folder))
        if (repeat := read_runs(folder, "again", arguments.steps)) is not None:
            repeats.append(repeat)
            lines += again_table(cell, repeat)
    if not found:
        parser.error(f"no cell in {arguments.logs} has final runs: none is complete")
    if missing := [cell for cell in CELLS if cell not in found]:
        lines += [f"Not trained: {', '.join(missing)}.", ""]
    lines += change_table(found)
    seeds, starts = (sorted(set(pd.concat(found.values())[column])) for column in ("seed", "start"))
    lines.append(f"{len(seeds)} seeds ({', '.join(map(str, seeds))}) on {len(starts)} start models; 95 % intervals.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "tables.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pd.concat([*found.values(), *repeats]).round(6).to_csv(arguments.out / "runs.csv", index=False)
    figure(found, arguments.out / "study")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
