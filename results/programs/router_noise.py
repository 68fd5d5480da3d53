#!/usr/bin/env python3
"""How far router noise moves the ratios: spread of the token and sequence log-ratios against the share of experts.

    python results/programs/router_noise.py --json OUT [--batches 4] [--shares 0.03,0.1,0.2,0.4] [--figure SVG]
    python results/programs/router_noise.py --draw OUT --figure SVG     # from a result, without a model

Rollout batches of the quickstart recipe from its start model, whose weights stay as they are. The old policy's experts
get `noise.experts`; an update of learning rate 0 then logs the ratios that GRPO (token) and GSPO (sequence) would use,
without Routing Replay and with it. A row is a batch.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from measuring import write
from workload import isolate

WANTED = ("moe/noise_slot_churn", "ratio/token_log_std", "ratio/seq_log_std", "ratio/token_log_absmax")


def measure(batches: int, shares: list[float]) -> list[dict[str, Any]]:
    """One row for each batch, share and arm."""
    from gspo_cli import recipe as recipes
    from gspo_cli.instruments.fidelity.report import sample
    from gspo_cli.models.device import prepare_torch
    from gspo_cli.training.cold_start import start_model
    from gspo_cli.training.loop import batching
    from gspo_cli.training.setup import load_setup, make_learner
    from gspo_cli.training.step.batches import make_mini_batches, rewards_and_groups
    from gspo_cli.training.step.update import record_old_policy, update
    from gspo_cli.training.study.arms import plan_runs

    prepare_torch(1)
    rows, drawn = list[dict[str, Any]](), dict[int, Any]()
    base = recipes.load("quickstart", {}, ["train.minibatches=1"])
    setup = load_setup(base, start_model(base, lambda *_: None))
    for share in shares:
        for replay in ("none", "r2"):
            sets = ["train.minibatches=1", f"algo.replay={replay}", f"noise.experts={share}"]
            (run,) = plan_runs(recipes.load("quickstart", {}, sets), ["gspo"], [0])
            learner = make_learner(run, setup.model)
            for number in range(1, batches + 1):
                if number not in drawn:
                    drawn[number] = sample(setup, run.recipe, number, 0)
                rewards_B, groups_B = rewards_and_groups(drawn[number])
                advantages_B = run.algorithm.advantage(rewards_B, groups_B, run.params)
                layout = batching(run, learner, number)
                (mini,) = make_mini_batches(drawn[number], advantages_B, layout, learner.model.device)
                record_old_policy(learner, [mini])
                values = update(learner, mini, lr=0.0, first=True).result().values
                rows.append({"share": share, "replay": replay, "batch": number} | {k: values[k] for k in WANTED})
                print(rows[-1], flush=True)
    setup.engine.close()
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Every batch as a point: the spread of both log-ratios against the share, with Routing Replay and without."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "gspo"
    figure, axes = plt.subplots(figsize=(5, 3.6), layout="constrained")
    kinds = (("ratio/token_log_std", "o", "token, GRPO"), ("ratio/seq_log_std", "s", "sequence, GSPO"))
    for colour, (name, marker, label) in enumerate(kinds):
        for replay, filled, added in (("none", True, ""), ("r2", False, ", with Routing Replay")):
            found = [(100 * row["share"], row[name]) for row in rows if row["replay"] == replay]
            face = f"C{colour}" if filled else "none"
            axes.plot(*zip(*found, strict=True), marker, color=f"C{colour}", markerfacecolor=face, label=label + added)
    axes.set_yscale("symlog", linthresh=0.01)
    axes.set_xlabel("expert slots exchanged [%]")
    axes.set_ylabel("standard deviation of the log-ratio")
    axes.set_title("Router noise at unchanged weights", size=10)
    axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=4, help="rollout batches (default %(default)s)")
    parser.add_argument("--shares", default="0.03,0.1,0.2,0.4", help="shares of expert slots (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the result is written")
    parser.add_argument("--figure", type=Path, metavar="SVG", help="where the figure is written")
    parser.add_argument("--draw", type=Path, metavar="OUT", help="draw a result, measure nothing")
    args = parser.parse_args()
    if args.draw:
        return draw(json.loads(args.draw.read_text(encoding="utf-8"))["rows"], args.figure)
    isolate(threads=1)
    rows = measure(args.batches, [float(share) for share in args.shares.split(",")])
    write(args.json, {"command": " ".join(["python", *sys.argv]), "rows": rows})
    if args.figure:
        draw(rows, args.figure)


if __name__ == "__main__":
    main()
