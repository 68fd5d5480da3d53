"""What a run is made of, loaded before its folder is touched: model, task, engine, learner; on one rank or several."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_cli.config import Recipe
from gspo_cli.errors import GspoError
from gspo_cli.evals.during_training import BenchmarkSet, load_benchmarks
from gspo_cli.models.divided import load_divided, load_divided_value, replica, skeleton
from gspo_cli.models.load import load_policy, weights_hash
from gspo_cli.models.lora import adapt
from gspo_cli.models.recompute import enable_recompute
from gspo_cli.models.value import ValueModel
from gspo_cli.moe.gating import Gating, gating_of, with_weights
from gspo_cli.moe.routers import find_routing, needed_routing, replayable
from gspo_cli.ranks import ALONE, Ranks
from gspo_cli.rollout.collect import PromptStream
from gspo_cli.rollout.engine import Engine
from gspo_cli.rollout.engines import open_engine
from gspo_cli.rollout.shared import SharedEngine, SharedTask
from gspo_cli.tasks import make_task
from gspo_cli.tasks.contract import Task
from gspo_cli.training.critic import Critic
from gspo_cli.training.study import Run, find_algorithm
from gspo_cli.training.update import Learner


@dataclass(frozen=True)
class Shared:
    """What a learner on several ranks cannot make from its divided model."""

    ranks: Ranks = ALONE
    reference: PreTrainedModel | None = None
    """The start model, divided too, where the KL penalty needs one; adapters stand on it already."""
    value: ValueModel | None = None
    """The critic's, divided too, where the algorithm has one."""
    rule: Gating | None = None
    """How the routers' logits become gate weights, where Routing Replay needs it."""


@dataclass(frozen=True)
class Parts:
    """What a run is made of, loaded before its folder is touched."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    task: Task
    stream: PromptStream
    benchmarks: BenchmarkSet
    engine: Engine
    start_sha256: str
    """Of the weights as loaded."""
    shared: Shared = Shared()


def load_parts(recipe: Recipe, start: Path, ranks: Ranks = ALONE) -> Parts:
    """Start model, task and engine.

    Errors: GspoError for what cannot be loaded.
    """
    if ranks.size > 1:
        return load_shared_parts(recipe, start, ranks)
    model, tokenizer = load_policy(recipe.model, start)
    if recipe.model.compute not in (None, recipe.model.dtype):
        raise GspoError(
            f"model.compute = {recipe.model.compute!r} with parameters in {recipe.model.dtype}",
            "one process computes in the precision of its parameters; others belong to weights divided over ranks",
            "--set model.compute=" + recipe.model.dtype,
        )
    if recipe.train.recompute:
        enable_recompute(model)
    task = make_task(recipe.task)
    stream = PromptStream(task.problems(recipe.task.split), recipe.rollout.prompts, recipe.seed)
    benchmarks = load_benchmarks(recipe.eval)
    start_sha256 = weights_hash(model)
    adapt(model, recipe, start)
    engine = open_engine(recipe.rollout, model, tokenizer, recipe.records_routes, trains=True)
    return Parts(model, tokenizer, task, stream, benchmarks, engine, start_sha256)


def load_shared_parts(recipe: Recipe, start: Path, ranks: Ranks) -> Parts:
    """The same with weights divided over the ranks. To sample, each has a whole copy of them, or an engine that takes
    them tensor by tensor.

    Errors: GspoError for what cannot be loaded.
    """
    model, tokenizer, start_sha256 = load_divided(recipe, start, ranks)
    if recipe.train.recompute:
        enable_recompute(model)
    task = make_task(recipe.task)
    stream = PromptStream(task.problems(recipe.task.split), recipe.rollout.prompts, recipe.seed)
    benchmarks = load_benchmarks(recipe.eval)
    rollout = recipe.rollout
    whole = replica(recipe, start, model) if rollout.engine == "transformers" else model
    engine = open_engine(rollout, whole, tokenizer, recipe.records_routes, trains=True, ranks=ranks)
    spread = rollout.vllm.tensor_parallel if rollout.engine == "vllm" else 1
    reference = value = rule = None
    if recipe.algo.kl.coef > 0 and recipe.model.lora is None:
        reference = load_divided(recipe, start, ranks).model.requires_grad_(False)
    if getattr(find_algorithm(recipe.algo.name, []), "CRITIC", False):
        value = load_divided_value(recipe, start, ranks)
        if recipe.train.recompute:
            enable_recompute(value.trunk)
    if recipe.algo.replay != "none":
        bare = skeleton(recipe, start, model.config._attn_implementation)
        rule = gating_of(with_weights(needed_routing(bare, f"algo.replay = {recipe.algo.replay!r}").gates[0]))
    return Parts(
        model, tokenizer, SharedTask(task, ranks), stream, benchmarks, SharedEngine(engine, ranks, spread),
        start_sha256, Shared(ranks, reference, value, rule),
    )  # fmt: skip


def make_learner(run: Run, model: PreTrainedModel, shared: Shared = Shared()) -> Learner:
    """The policy with its optimizer, and the critic and reference that the arm asks for."""
    recipe, reference, routing = run.recipe, shared.reference, find_routing(model)
    if recipe.algo.kl.coef > 0 and reference is None:  # with adapters the start model is still there, beneath them
        reference = copy.deepcopy(model).requires_grad_(False) if recipe.model.lora is None else model
    critic = None
    if getattr(run.algorithm, "CRITIC", False):
        value = ValueModel(copy.deepcopy(model.base_model)) if shared.value is None else shared.value
        critic = Critic(value, run.params.critic_lr, recipe.train.grad_clip, shared.ranks)
    replay = recipe.algo.replay
    if replay != "none":
        if routing is not None and shared.rule is not None:
            routing = replace(routing, rule=shared.rule)
        else:
            routing = replayable(model, f"algo.replay = {replay!r}")
    return Learner(
        model=model, optimizer=make_optimizer(model, recipe), algorithm=run.algorithm, params=run.params,
        algo=recipe.algo, temperature=recipe.rollout.temperature, grad_clip=recipe.train.grad_clip,
        critic=critic, reference=reference, ranks=shared.ranks, routing=routing,
    )  # fmt: skip


def make_optimizer(model: torch.nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW with the recipe's settings; the learning rate is set at each step."""
    settings, trained = recipe.train.optimizer, [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(trained, betas=settings.betas, weight_decay=settings.weight_decay, fused=True)
