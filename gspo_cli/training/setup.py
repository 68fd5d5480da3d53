"""What a run is made of, loaded before its folder is touched: model, task, engine, learner; on one rank or several."""

import copy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_cli.config import Recipe
from gspo_cli.distributed import SINGLE_PROCESS, Ranks
from gspo_cli.errors import GspoError
from gspo_cli.evals.settings import BenchmarkSet, load_benchmarks
from gspo_cli.models.admission import paths_of, position_limit
from gspo_cli.models.load import load_policy, replica, sharded_load, sharded_load_value, skeleton, weights_hash
from gspo_cli.models.lora import adapt
from gspo_cli.models.precision import compute_dtype, compute_in
from gspo_cli.models.trunk import ValueModel, enable_recompute, trunk_of
from gspo_cli.moe.route_noise import reachable
from gspo_cli.moe.routers import Routing, find_routing, replayable
from gspo_cli.rollout.collect import PromptStream
from gspo_cli.rollout.engine import Engine, Progress
from gspo_cli.rollout.engines import SharedEngine, SharedTask, open_engine
from gspo_cli.rollout.prompts import fitting
from gspo_cli.tasks import Crediting, Task, make_task, read_problems
from gspo_cli.training.step.critic import Critic
from gspo_cli.training.step.loss_scale import loss_scaler
from gspo_cli.training.step.update import Learner
from gspo_cli.training.study.arms import Run, find_algorithm


@dataclass(frozen=True)
class Setup:
    """The parts of a run."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    task: Task
    stream: PromptStream
    benchmarks: BenchmarkSet
    engine: Engine
    start: Path
    start_sha256: str
    """Of the weights as loaded, without adapters."""
    num_dropped: int
    """Problems left out because they cannot fit into the model's positions."""
    ranks: Ranks


def load_setup(
    recipe: Recipe, start: Path, ranks: Ranks = SINGLE_PROCESS, progress: Progress = lambda _: None
) -> Setup:
    """Start model, task and engine.

    On several ranks the weights are sharded. To sample, each rank has a full copy of them, or an engine that takes them
    tensor by tensor. `progress` is told how far the engine is.
    Errors: GspoError for what cannot be loaded.
    """
    if ranks.size > 1:
        model, tokenizer, start_sha256 = sharded_load(recipe, start, ranks)
    else:
        model, tokenizer = load_policy(recipe.model, start)
        start_sha256 = weights_hash(model)
    if recipe.train.recompute:
        enable_recompute(model)
    task = make_task(recipe.task)
    check_credits(recipe, task)
    problems, limit = read_problems(task, recipe.task), position_limit(model.config)
    fit = fitting(problems, tokenizer, limit, recipe.rollout.max_new_tokens, recipe.task)
    stream = PromptStream(fit, recipe.rollout.prompts, recipe.seed)
    benchmarks = load_benchmarks(recipe)
    rollout, routes = recipe.rollout, recipe.records_routes
    engine: Engine
    if ranks.size == 1:
        adapt(model, recipe, start)
        engine = open_engine(rollout, model, tokenizer, routes, progress, trains=True)
    else:
        sampled = replica(recipe, start, model) if rollout.engine == "transformers" else model
        spread = rollout.vllm.tensor_parallel if rollout.engine == "vllm" else 1
        alone = open_engine(rollout, sampled, tokenizer, routes, progress, trains=True, ranks=ranks)
        engine, task = SharedEngine(alone, ranks, spread), SharedTask(task, ranks)
    num_dropped = len(problems) - len(fit)
    return Setup(model, tokenizer, task, stream, benchmarks, engine, start, start_sha256, num_dropped, ranks)


def check_credits(recipe: Recipe, task: Task) -> None:
    """Errors: GspoError for a task that weighs single tokens, with an algorithm that cannot."""
    algorithm = find_algorithm(recipe.algo.name)
    has_critic = algorithm.token_advantages is not None
    if isinstance(task, Crediting) and (has_critic or algorithm.ONE_ADVANTAGE):
        raise GspoError(
            f"{recipe.algo.name} with a task that has token_credits",
            "its critic gives each token an advantage already"
            if has_critic
            else "it weighs a response as a whole; factors on single tokens would be counted once per token",
            "remove token_credits, or use gspo_token or an algorithm with a ratio per token",
        )


def make_learner(run: Run, model: PreTrainedModel, ranks: Ranks = SINGLE_PROCESS, start: str | Path = "") -> Learner:
    """The policy with its optimizer, and the critic and reference that the arm asks for.

    On several ranks these are sharded like the policy, and read from the folder `start`.
    """
    recipe, routing = run.recipe, find_routing(model)
    reference = critic = None
    if recipe.algo.kl.coef > 0 and recipe.model.lora is not None:
        reference = model  # beneath its adapters the start model is still there
    elif recipe.algo.kl.coef > 0:
        frozen = sharded_load(recipe, start, ranks)[0] if ranks.size > 1 else copy.deepcopy(model)
        reference = frozen.requires_grad_(False)
    if run.algorithm.token_advantages is not None:
        if ranks.size > 1:
            value = sharded_load_value(recipe, start, ranks)
            if recipe.train.recompute:
                enable_recompute(value.trunk)
        else:
            value = ValueModel(copy.deepcopy(trunk_of(model)))
            if compute_dtype(model) != model.dtype:
                compute_in(value.trunk, compute_dtype(model))
        critic = Critic(value, run.params.critic_lr, recipe.train.grad_clip, ranks)
    if recipe.replays:
        whole = skeleton(recipe, start, paths_of(model)) if ranks.size > 1 else model
        known = replayable(whole, recipe.replays)
        routing = known if routing is None or whole is model else replace(routing, rule=known.rule)
        check_router_noise(recipe, routing)
    return Learner(
        model=model, optimizer=make_optimizer(model, recipe), algorithm=run.algorithm, params=run.params,
        algo=recipe.algo, temperature=recipe.rollout.temperature, grad_clip=recipe.train.grad_clip,
        critic=critic, reference=reference, ranks=ranks, routing=routing, scaler=loss_scaler(model),
    )  # fmt: skip


def check_router_noise(recipe: Recipe, routing: Routing) -> None:
    """Errors: GspoError for a share of expert slots that no noise can exchange."""
    share, most = recipe.noise.experts if recipe.noise else 0.0, reachable(routing.num_experts, routing.top_k)
    if share >= most:
        raise GspoError(
            f"noise.experts = {share:g} with {routing.top_k} of {routing.num_experts} experts",
            f"even experts drawn at random differ in {most:.3g} of the slots",
            "a share below that; the paper measured 0.1",
        )


def make_optimizer(model: torch.nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW with the recipe's settings; each step sets the learning rate."""
    settings, trained = recipe.train.optimizer, [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(trained, betas=settings.betas, weight_decay=settings.weight_decay, fused=True)
