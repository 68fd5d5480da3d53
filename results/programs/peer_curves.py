#!/usr/bin/env python3
"""TRL's side of `same_curves.py`: TRL's GRPOTrainer trains from a given start model on given prompts, in their order.

    PEER/bin/python peer_curves.py JOB.json OUT.json

JOB.json holds the settings in gspo's terms (see `same_curves.job`); docs/other-trainers.md explains the mapping that
`peer_settings` makes. TRL's code runs as it is. Three of its methods are watched from outside, to record what its own
log lacks: the log-ratios, and the seconds of a batch. The trained model is saved beside OUT.json.
"""

from __future__ import annotations

import json
import statistics
import sys
from importlib.metadata import version
from itertools import starmap
from pathlib import Path
from time import perf_counter
from typing import Any

from workload import isolate

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = ("trl", "transformers", "torch", "accelerate", "datasets", "numpy")
LEVELS = {"grpo": "token", "gspo": "sequence"}


def peer_settings(job: dict[str, Any], output: str) -> dict[str, Any]:
    """The job in TRL's terms, the warm-up aside."""
    return {
        # one rollout batch feeds `minibatches` optimizer steps, each of them once
        "per_device_train_batch_size": job["prompts"] * job["samples"] // job["minibatches"],
        "steps_per_generation": job["minibatches"],
        "gradient_accumulation_steps": 1,
        "num_iterations": 1,
        "num_generations": job["samples"],
        "max_steps": job["batches"] * job["minibatches"],
        "shuffle_dataset": False,
        # the algorithm
        "importance_sampling_level": LEVELS[job["algo"]],
        "loss_type": "grpo",
        "epsilon": job["clip"]["low"],
        "epsilon_high": job["clip"]["high"],
        "beta": 0.0,
        "scale_rewards": "group",
        "mask_truncated_completions": False,
        # unset means the coefficient of the model's configuration; a dense model must not have the setting at all
        **({"router_aux_loss_coef": 0.0} if job["experts"] else {}),
        # sampling
        "temperature": job["temperature"],
        "top_p": 1.0,
        "top_k": 0,
        "max_completion_length": job["max_new_tokens"],
        "use_vllm": False,
        # AdamW; the learning rate's warm-up is set in `with_warmup`
        "learning_rate": job["lr"],
        "lr_scheduler_type": "constant",
        "adam_beta1": job["betas"][0],
        "adam_beta2": job["betas"][1],
        "weight_decay": job["weight_decay"],
        "max_grad_norm": job["grad_clip"],
        # plain float32; TRL turns the first two on when they are not named
        "bf16": False,
        "gradient_checkpointing": False,
        "model_init_kwargs": {"dtype": "float32", "attn_implementation": "sdpa"}
        | ({"experts_implementation": job["experts"]} if job["experts"] else {}),
        # everything is logged by this script
        "output_dir": output,
        "seed": job["seed"],
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def log_ratio_moments(new_BT: Any, inputs: dict[str, Any]) -> dict[str, float | None]:
    """Mean and standard deviation of the log-ratio over tokens, and its mean over responses, in nats.

    As gspo logs them: over responses whose advantage is not 0. None where a mini-batch has no such response.
    """
    rows = inputs["advantages"] != 0
    mask_BT = inputs["completion_mask"][rows].bool()
    names = ("ratio/token_log_mean", "ratio/token_log_std", "ratio/seq_log_mean", "ratio/seq_log_std")
    if len(mask_BT) < 2:
        return dict.fromkeys(names)
    log_BT = (new_BT.detach() - inputs["old_per_token_logps"])[rows].double()
    token_M = log_BT[mask_BT]
    response_B = log_BT.where(mask_BT, log_BT.new_zeros(())).sum(-1) / mask_BT.sum(-1)
    values = (token_M.mean(), token_M.std(), response_B.mean(), response_B.std())
    return dict(zip(names, map(float, values), strict=True))


def train(job: dict[str, Any], model_folder: Path) -> dict[str, list[Any]]:
    """Trains and saves; every series has one entry a rollout batch, or under `updates/` one an optimizer step."""
    import torch
    from datasets import Dataset
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import AutoTokenizer, PrinterCallback, TrainerCallback, TrainerState
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer import grpo_trainer

    sys.path.insert(0, str(ROOT))  # this project's rewards; the rest of it stays out
    from gspo_cli.config import TaskConfig
    from gspo_cli.tasks import make_task
    from gspo_cli.tasks.scoring import score
    from gspo_cli.types import Problem, Response

    if job["whole_groups"]:  # the mini-batches of gspo, to see what TRL's own change
        grpo_trainer.shuffle_sequence_dict = lambda tensors: tensors
    torch.set_num_threads(job["threads"])
    names = ("reward/mean", "length/mean", "batch_s")
    series: dict[str, list[Any]] = {name: [] for name in names}
    updates: dict[str, list[Any]] = {}
    begun = perf_counter()

    class Recorder(TrainerCallback):  # type: ignore[misc]
        """Collects TRL's own log after each optimizer step, and the time after each rollout batch."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            nonlocal begun
            begun = perf_counter()

        def on_step_end(self, _: Any, state: TrainerState, *__: Any, **___: Any) -> None:
            nonlocal begun
            if state.global_step % job["minibatches"] == 0:
                now = perf_counter()
                series["batch_s"].append(round(now - begun, 6))
                begun = now

        def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
            if "clip_ratio/region_mean" in logs:
                for name in ("clip_ratio/region_mean", "grad_norm", "learning_rate", "entropy", "loss"):
                    updates.setdefault(name, []).append(logs[name])

    class Watched(GRPOTrainer):  # type: ignore[misc]
        """TRL's trainer; notes the log-ratios of each optimizer step and the lengths of each rollout batch."""

        watched: dict[str, Any] | None = None

        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
            self.watched = inputs
            return super()._compute_loss(model, inputs)

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            if torch.is_grad_enabled() and self.watched is not None:
                for name, value in log_ratio_moments(result[0], self.watched).items():
                    updates.setdefault(name, []).append(value)
                self.watched = None
            return result

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            result = super()._generate_and_score_completions(inputs)
            lengths = result["completion_mask"].sum(-1).float()
            series["length/mean"].append(float(lengths.mean()))
            return result

    task = make_task(TaskConfig(**job["task"]))

    def scored(completions: list[str], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        rows = zip(columns["id"], columns["prompts"], columns["answer"], strict=True)
        texts = [Response(text, len(ids), "stop") for text, ids in zip(completions, completion_ids, strict=True)]
        rewards = [one.value for one in score(task, list(zip(starmap(Problem, rows), texts, strict=True)))]
        series["reward/mean"].append(statistics.fmean(rewards))
        return rewards

    def with_warmup(trainer: Any) -> None:
        """gspo's warm-up: update k of W (from 1) has k / W of the rate; transformers' own gives it (k - 1) / W."""
        warmup = max(1, job["warmup"] * job["minibatches"])
        trainer.create_optimizer()
        trainer.lr_scheduler = LambdaLR(trainer.optimizer, lambda step: min(1.0, (step + 1) / warmup))

    trainer = Watched(
        model=job["start"],
        args=GRPOConfig(**peer_settings(job, str(model_folder.parent / "trl"))),
        reward_funcs=scored,
        train_dataset=Dataset.from_list(job["rows"]),
        processing_class=AutoTokenizer.from_pretrained(job["start"], padding_side="left"),
        callbacks=[Recorder()],
    )
    trainer.remove_callback(PrinterCallback)
    with_warmup(trainer)
    trainer.train()
    trainer.save_model(str(model_folder))
    return series | {f"updates/{name}": values for name, values in updates.items()}


def main() -> None:
    """Train and write."""
    job_path, out = map(Path, sys.argv[1:3])
    job = json.loads(job_path.read_text(encoding="utf-8"))
    isolate(job["threads"])
    sys.modules["vllm"] = None  # type: ignore[assignment]  # TRL imports vLLM wherever it finds it
    series = train(job, out.parent / "model")
    versions = {"python": sys.version.split()[0]} | {name: version(name) for name in PACKAGES}
    out.write_text(json.dumps({"series": series, "versions": versions}), encoding="utf-8")


if __name__ == "__main__":
    main()
