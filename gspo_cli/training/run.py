"""One run from its start model to its logs and final weights."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_cli.config import Recipe
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.evals import find_benchmark
from gspo_cli.evals.runner import evaluate
from gspo_cli.models.load import load_policy, tokenizer_hash, weights_hash
from gspo_cli.models.lora import add_lora
from gspo_cli.models.torch_setup import determinism
from gspo_cli.moe.routers import find_routing, replayable
from gspo_cli.plugins import is_plugin, plugin_source
from gspo_cli.rollout.collect import PromptStream, problems_hash
from gspo_cli.rollout.engine import Engine
from gspo_cli.rollout.engines import open_engine
from gspo_cli.rollout.store import write_rollout
from gspo_cli.runlog import fs
from gspo_cli.runlog.folder import fresh
from gspo_cli.runlog.log import RunLog, canonical, short_hash
from gspo_cli.runlog.provenance import code_diff, provenance
from gspo_cli.seeds import derive_seed
from gspo_cli.tasks import make_task
from gspo_cli.training.critic import Critic
from gspo_cli.training.loop import Hooks, Session, train
from gspo_cli.training.study import Run
from gspo_cli.training.update import Learner
from gspo_cli.types import StepMetrics


@dataclass(frozen=True)
class View:
    """Where a run shows what it does."""

    on_step: Callable[[int, dict[str, float | None]], None]
    on_preflight: Callable[[dict[str, float], list[str]], None]


def execute(run: Run, start: Path, study: Path, recipe_text: str, argv: list[str], view: View) -> Path:
    """Trains one run and returns its folder.

    Whatever happens, the logs end with a whole line, and an event says how the run ended.
    """
    folder, recipe = study / run.name, run.recipe
    model, tokenizer = load_policy(recipe.model, start)
    task = make_task(recipe.task)
    stream = PromptStream(task.problems(recipe.task.split), recipe.rollout.prompts, recipe.seed)
    hashes = {
        "model_sha256": weights_hash(model),
        "tokenizer_sha256": tokenizer_hash(tokenizer),
        "data_sha256": problems_hash(stream.problems),
    }
    if recipe.model.lora is not None:
        add_lora(model, recipe.model.lora, start, recipe.model.revision, derive_seed(recipe.seed, "lora"))
    engine = open_engine(recipe.rollout, model, tokenizer, recipe.records_routes)
    log = open_folder(run, folder, start, recipe_text, argv, hashes | {"engine": engine.info.as_dict()}, model)
    learner = make_learner(run, model)
    hooks = Hooks(
        evaluate=lambda: evaluate_all(recipe, engine, tokenizer),
        store=lambda batch: write_rollout(
            batch,
            folder / "rollouts" / f"step_{batch.step:06d}.parquet",
            rollout_metadata(model, tokenizer, recipe),
        ),
        on_step=view.on_step,
        on_preflight=view.on_preflight,
    )
    started = time.monotonic()
    try:
        train(Session(run, learner, engine, tokenizer, task, stream, log, hooks))
        save_model(model, tokenizer, folder / "checkpoints" / f"step-{recipe.train.steps:06d}" / "model")
        log.event("end", status="completed", seconds=round(time.monotonic() - started, 3))
    except BaseException as error:
        record_end(log, error, time.monotonic() - started)
        raise
    finally:
        engine.close()
    return folder


def rollout_metadata(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, recipe: Recipe) -> dict[str, str]:
    """What a stored batch must be read with: the policy that sampled it, by the hash of its weights as they are."""
    return {
        "model_sha256": weights_hash(model),
        "tokenizer_sha256": tokenizer_hash(tokenizer),
        "temperature": str(recipe.rollout.temperature),
        "max_new_tokens": str(recipe.rollout.max_new_tokens),
    }


def open_folder(
    run: Run,
    folder: Path,
    start: Path,
    recipe_text: str,
    argv: list[str],
    found: dict[str, Any],
    model: PreTrainedModel,
) -> RunLog:
    """Creates the run folder with its provenance, and its log."""
    recipe = run.recipe
    config_text = canonical(recipe.model_dump(mode="json", exclude={"name"}))
    fresh(folder)
    fs.write_text(folder / "recipe.toml", recipe_text)
    fs.write_text(folder / "config.json", json.dumps(recipe.model_dump(mode="json"), indent=1))
    fs.write_text(folder / "code.diff", code_diff())
    plugins = [p for p in (recipe.algo.name, recipe.task.name, recipe.task.reward) if p and is_plugin(p)]
    record = provenance(argv) | found | {
        "study": folder.parent.name, "arm": run.arm, "seed": recipe.seed, "start_model": str(start),
        "config_sha256": hashlib.sha256(config_text.encode()).hexdigest(),
        "device": device_name(model.device), "threads": torch.get_num_threads(), "determinism": determinism(),
        "num_parameters": sum(p.numel() for p in model.parameters()), "planned_steps": recipe.train.steps,
        "num_trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "plugins": {p: plugin_source(p) for p in plugins},
    }  # fmt: skip
    fs.write_text(folder / "run.json", json.dumps(record, indent=1))
    log = RunLog(folder, short_hash(config_text))
    log.event("start", pid=os.getpid())
    return log


def make_learner(run: Run, model: PreTrainedModel) -> Learner:
    """The policy with its optimizer, and the critic and reference that the arm asks for."""
    recipe = run.recipe
    reference = None
    if recipe.algo.kl.coef > 0:  # with adapters the start model is still there, beneath them
        reference = copy.deepcopy(model).requires_grad_(False) if recipe.model.lora is None else model
    critic = (
        Critic(model, run.params.critic_lr, recipe.train.grad_clip) if getattr(run.algorithm, "CRITIC", False) else None
    )
    replay = recipe.algo.replay
    return Learner(
        model=model, optimizer=make_optimizer(model, recipe), algorithm=run.algorithm, params=run.params,
        algo=recipe.algo, temperature=recipe.rollout.temperature, grad_clip=recipe.train.grad_clip,
        critic=critic, reference=reference,
        routing=find_routing(model) if replay == "none" else replayable(model, f"algo.replay = {replay!r}"),
    )  # fmt: skip


def evaluate_all(recipe: Recipe, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> StepMetrics:
    """The recipe's benchmarks with the weights as they are."""
    metrics = StepMetrics()
    for benchmark in map(find_benchmark, recipe.eval.bench):
        result = evaluate(benchmark, engine, tokenizer, recipe.eval.samples, False, recipe.seed)
        metrics.values[result.metric] = result.average
        metrics.counts[result.metric] = result.num_problems * result.samples
    return metrics


def make_optimizer(model: torch.nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW with the recipe's settings; the learning rate is set at each step."""
    settings, trained = recipe.train.optimizer, [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(trained, betas=settings.betas, weight_decay=settings.weight_decay, fused=True)


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """An ordinary Hugging Face folder (with adapters: peft's, of the adapters alone), whole or not at all.

    Errors: GspoError (exit code 6) when the disk refuses.
    """
    temporary = folder.with_name(f".tmp-{folder.name}")
    try:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        temporary.replace(folder)
    except OSError as error:
        raise fs.storage_error(folder, error) from error


def record_end(log: RunLog, error: BaseException, seconds: float) -> None:
    """Writes the queued lines and how the run ended, as far as the disk allows."""
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    code = error.code if isinstance(error, GspoError) else 130 if status == "interrupted" else ExitCode.UNEXPECTED
    try:
        log.flush()
        log.event(
            "end", status=status, reason=str(error) or type(error).__name__, exit=int(code), seconds=round(seconds, 3)
        )
    except GspoError:
        return  # the disk that ended the run refuses this too; the error itself reaches the user


def device_name(device: torch.device) -> str:
    """`cpu`, or the GPU's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
