#!/usr/bin/env python3
"""What reading and replaying expert choices costs a training step: the same batch, in turn without, with, with replay.

    python results/programs/route_capture.py MODEL_DIR [--repeats 15] [--threads 2]

A step is the old policy's pass and four updates of one rollout batch (32 prompts x 16 samples), without sampling and
without the probe. The weights are put back before each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from typing import Any


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    import torch

    from gspo_cli.config import Recipe
    from gspo_cli.models.device import prepare_torch
    from gspo_cli.models.load import load_policy
    from gspo_cli.moe.routers import replayable
    from gspo_cli.rollout.collect import PromptStream, collect
    from gspo_cli.rollout.engines import open_engine
    from gspo_cli.tasks.arithmetic import Arithmetic
    from gspo_cli.training.setup import make_learner
    from gspo_cli.training.step.batches import Batching, make_mini_batches, rewards_and_groups
    from gspo_cli.training.step.update import record_old_policy, update
    from gspo_cli.training.study.arms import plan_runs
    from gspo_cli.types import Sampling

    recipe = Recipe.model_validate({"name": "b", "model": {"path": args.model}, "algo": {"name": "gspo"}})
    prepare_torch(args.threads)
    (run,) = plan_runs(recipe, ["gspo"], [0])
    model, tokenizer = load_policy(recipe.model, args.model)
    learner, task = make_learner(run, model), Arithmetic()
    stream = PromptStream(task.problems("train"), 32, 0)
    engine = open_engine(recipe.rollout, model, tokenizer)
    batch = collect(engine, tokenizer, task, stream.batch(1), 16, Sampling(1.0, 64), (0, "sample", 1), 0)
    advantages_B = run.algorithm.advantage(*rewards_and_groups(batch), run.params)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    kinds: dict[str, Any] = {
        "without": replace(learner, routing=None),
        "capture": learner,
        "r2": replace(learner, routing=replayable(model, "r2"), algo=learner.algo.model_copy(update={"replay": "r2"})),
    }

    def seconds(who: Any) -> float:
        model.load_state_dict(start)
        mini_batches = make_mini_batches(batch, advantages_B, Batching(4, 8192), model.device)
        began = time.perf_counter()
        record_old_policy(who, mini_batches)
        for index, mini_batch in enumerate(mini_batches):
            update(who, mini_batch, 1e-4, first=index == 0).result()
        return time.perf_counter() - began

    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(args.repeats + 1):
        for kind in list(kinds)[:: 1 if turn % 2 else -1]:
            measured = seconds(kinds[kind])
            if turn:  # the first is a warm-up
                taken[kind].append(measured)
    ratios = {
        kind: [t / base for t, base in zip(taken[kind], taken["without"], strict=True)] for kind in ("capture", "r2")
    }
    print(
        json.dumps(
            {
                "torch": torch.__version__,
                "threads": args.threads,
                "repeats": args.repeats,
                "median_s": {kind: round(statistics.median(t), 4) for kind, t in taken.items()},
                "ratio": {
                    kind: {q: round(v, 3) for q, v in zip(("q1", "median", "q3"), statistics.quantiles(r), strict=True)}
                    for kind, r in ratios.items()
                },
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
