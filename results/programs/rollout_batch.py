#!/usr/bin/env python3
"""Our side of the speed comparison: the project's own training loop on the embedded arithmetic workload.

The same options and JSON keys as peer_trl.py; see README.md beside this file.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from workload import REWARDS, Batch, isolate, parse_arguments, read_prompts, write_result


def recipe(args: argparse.Namespace) -> Any:
    """GSPO at the workload's settings."""
    from gspo_cli.config import Recipe

    return Recipe.model_validate(
        {
            "name": "benchmark",
            "seed": args.seed,
            "model": {"path": str(args.model), "threads": args.threads},
            "rollout": {
                "prompts": args.prompts,
                "samples": args.samples,
                "max_new_tokens": args.max_new_tokens,
                "keep_newest": False,
            },
            "train": {"steps": args.warmup + args.batches, "minibatches": args.minibatches, "lr": args.lr, "warmup": 0},
            "algo": {"name": "gspo"},
        }
    )


def main() -> None:
    """Runs the loop and writes the result."""
    args = parse_arguments(__doc__ or "")
    isolate(args.threads)
    import torch

    from gspo_cli.events import BatchDone, Event
    from gspo_cli.models.device import prepare_torch
    from gspo_cli.models.load import load_policy, stop_ids
    from gspo_cli.rollout.builtin.engine import TransformersEngine
    from gspo_cli.rollout.collect import PromptStream
    from gspo_cli.runlog.log import RunLog
    from gspo_cli.training.loop import train_batch
    from gspo_cli.training.session import Session
    from gspo_cli.training.setup import make_learner
    from gspo_cli.training.study.arms import plan_runs
    from gspo_cli.types import Problem, Score

    rows = read_prompts(args)
    problems = [Problem(f"{i}", row["prompt"], row["answer"]) for i, row in enumerate(rows)]

    class Task:
        def problems(self, _split: str) -> list[Problem]:
            return problems

        def reward(self, problem: Problem, text: str) -> Score:
            return Score(REWARDS[args.reward](text, problem.answer), "")

    class InOrder(PromptStream):
        def batch(self, step: int) -> list[Problem]:
            return problems[(step - 1) * args.prompts : step * args.prompts]

    prepare_torch(args.threads)
    (run,) = plan_runs(recipe(args), ["gspo"], [args.seed])
    model, tokenizer = load_policy(run.recipe.model, args.model)
    if args.experts:
        model.set_experts_implementation(args.experts)
    engine = TransformersEngine(model, stop_ids(model, tokenizer), 1.0, 600.0)
    learner = make_learner(run, model)
    batches: list[Batch] = []

    def keep(event: Event) -> None:
        if not isinstance(event, BatchDone):
            return
        value = {k: v or 0.0 for k, v in event.values.items()}
        batch: Batch = defaultdict(float)
        batch["batch"], batch["generate"] = value["batch_s"], value["rollout_s"]
        batch["old_log_probs"], batch["train"] = value["old_policy_s"], value["update_s"]
        batch["other"] = batch["batch"] - batch["generate"] - batch["old_log_probs"] - batch["train"]
        batch["response_length"], batch["reward"] = value["length/mean"], value["reward/mean"]
        batch["generated_tokens"] = value["length/mean"] * args.prompts * args.samples
        batch["padding_share"] = value["padding_frac"]
        batches.append(batch)

    with tempfile.TemporaryDirectory() as folder:
        log = RunLog(Path(folder), "")
        session = Session(
            run, learner, engine, tokenizer, Task(), InOrder(problems, args.prompts, args.seed), log, keep
        )
        for step in range(1, args.warmup + args.batches + 1):
            train_batch(session, step)
    found = {
        "experts": model.config._experts_implementation,
        "attention": model.config._attn_implementation.replace("gspo", "sdpa"),  # the same kernel, other rows
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
    }
    write_result(args, "gspo", batches, found, ("torch", "transformers", "numpy"))


if __name__ == "__main__":
    main()
