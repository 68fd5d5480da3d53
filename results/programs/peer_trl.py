#!/usr/bin/env python3
"""The peer's side of the speed comparison: TRL's GRPOTrainer on the embedded arithmetic workload, CPU, float32.

A rollout batch is: sample `prompts * samples` responses, score them, recompute their old log-probabilities, make
`minibatches` optimizer steps, one pass over the data. TRL's code runs as it is; a stopwatch stands around three of its
methods. See README.md beside this file for the environment, the settings and the JSON keys.

Not covered: accelerators, several processes, vLLM (hidden from import), reduced precision.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from time import perf_counter
from typing import Any

from workload import REWARDS, Batch, isolate, parse_arguments, read_prompts, write_result

PACKAGES = ("trl", "transformers", "torch", "accelerate", "datasets", "numpy")


def gspo_settings(args: argparse.Namespace, output: str) -> dict[str, Any]:
    """TRL's name for everything the comparison fixes."""
    return {
        # one rollout batch feeds `minibatches` optimizer steps, each of them once
        "per_device_train_batch_size": args.prompts * args.samples // args.minibatches,
        "steps_per_generation": args.minibatches,
        "gradient_accumulation_steps": 1,
        "num_iterations": 1,
        "num_generations": args.samples,
        "max_steps": (args.warmup + args.batches) * args.minibatches,
        "shuffle_dataset": False,
        # GSPO
        "importance_sampling_level": "sequence",
        "loss_type": "grpo",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
        "beta": 0.0,
        "scale_rewards": "group",
        "router_aux_loss_coef": 0.0,  # unset means the model's own coefficient
        # sampling
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "max_completion_length": args.max_new_tokens,
        "use_vllm": False,
        # AdamW
        "learning_rate": args.lr,
        "lr_scheduler_type": "constant",
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        # plain float32; TRL turns the first two on when they are not named
        "bf16": False,
        "gradient_checkpointing": False,
        "model_init_kwargs": {"dtype": "float32", "attn_implementation": "sdpa"}
        | ({"experts_implementation": args.experts} if args.experts else {}),
        # nothing beside the work
        "output_dir": output,
        "seed": args.seed,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


class Stopwatch:
    """Collects one `Batch` after the other.

    A batch lasts from the end of the last optimizer step before it to the end of its own last one, so the batches tile
    the run. `train` is what is left of it after everything that TRL does before it hands out the first mini-batch.
    """

    def __init__(self) -> None:
        self.finished: list[Batch] = []
        self.start_batch()

    def start_batch(self) -> None:
        """A new rollout batch begins now."""
        self.batch: Batch = defaultdict(float)
        self.start = perf_counter()

    def end_batch(self) -> None:
        """Its last optimizer step is done."""
        self.batch["batch"] = perf_counter() - self.start
        self.batch["train"] = self.batch["batch"] - self.batch["rollout"]
        self.finished.append(self.batch)
        self.start_batch()

    def add(self, phase: str, seconds: float) -> None:
        """Time of a phase that may run in several pieces."""
        self.batch[phase] += seconds

    def rollout(self, seconds: float, tensors: dict[str, Any]) -> None:
        """TRL's generation, scoring and old log-probabilities together, and the masks that came out of them."""
        responses, prompts, batch = tensors["completion_mask"], tensors["prompt_mask"], self.batch
        batch["rollout"] = seconds
        batch["other"] = seconds - batch["generate"] - batch["old_log_probs"]
        batch["generated_tokens"] = int(responses.sum())
        batch["response_length"] = batch["generated_tokens"] / len(responses)
        batch["padding_share"] = 1 - int(responses.sum() + prompts.sum()) / (responses.numel() + prompts.numel())


def time_method(owner: object, name: str, record: Callable[[float, Any], None]) -> None:
    """Replace a method of one object by itself with a stopwatch: `record(seconds, result)` after each call."""
    method = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = perf_counter()
        result = method(*args, **kwargs)
        record(perf_counter() - start, result)
        return result

    setattr(owner, name, timed)


def measure(args: argparse.Namespace) -> tuple[list[Batch], dict[str, Any]]:
    """Run the trainer: what was measured in each rollout batch, and what the trainer really ran with."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, PrinterCallback, TrainerCallback, TrainerState
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(args.threads)
    watch = Stopwatch()

    class Laps(TrainerCallback):  # type: ignore[misc]
        """Tells the stopwatch where batches begin and end."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            watch.start_batch()

        def on_step_end(self, _: Any, state: TrainerState, *__: Any, **___: Any) -> None:
            if state.global_step % args.minibatches == 0:
                watch.end_batch()

    def scored(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        rewards = [REWARDS[args.reward](text, right) for text, right in zip(completions, answer, strict=True)]
        watch.batch["reward"] = statistics.fmean(rewards)
        return rewards

    def forward(seconds: float, _: Any) -> None:
        if not torch.is_grad_enabled():  # with gradients it belongs to `train`
            watch.add("old_log_probs", seconds)

    with tempfile.TemporaryDirectory() as output:
        trainer = GRPOTrainer(
            model=str(args.model),
            args=GRPOConfig(**gspo_settings(args, output)),
            reward_funcs=scored,
            train_dataset=Dataset.from_list(read_prompts(args)),
            processing_class=AutoTokenizer.from_pretrained(args.model, padding_side="left"),
            callbacks=[Laps()],
        )
        trainer.remove_callback(PrinterCallback)
        time_method(trainer, "_generate_single_turn", lambda seconds, _: watch.add("generate", seconds))
        time_method(trainer, "_get_per_token_logps_and_entropies", forward)
        time_method(trainer, "_generate_and_score_completions", watch.rollout)
        trainer.train()
    config = trainer.model.config
    found = {"experts": config._experts_implementation, "attention": config._attn_implementation}
    found |= {"dtype": str(trainer.model.dtype).removeprefix("torch."), "threads": torch.get_num_threads()}
    return watch.finished, found


def main() -> None:
    """Measure and write."""
    args = parse_arguments(__doc__.splitlines()[0])
    isolate(args.threads)
    sys.modules["vllm"] = None  # type: ignore[assignment]  # TRL imports vLLM wherever it finds it
    batches, found = measure(args)
    write_result(args, "trl", batches, found, PACKAGES)


if __name__ == "__main__":
    main()
