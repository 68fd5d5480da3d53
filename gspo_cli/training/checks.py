"""Combinations that the mathematics forbids, refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from gspo_cli.algorithms import Algorithm
from gspo_cli.config import AlgoConfig, Recipe
from gspo_cli.errors import GspoError
from gspo_cli.models.adapter_folder import refuse_adapter
from gspo_cli.models.foreign_code import code_arguments
from gspo_cli.models.load import load_error, pick_device
from gspo_cli.models.lora import require_peft
from gspo_cli.moe.routers import needed_routing
from gspo_cli.ranks import Ranks
from gspo_cli.rollout.capabilities import check_engine, check_spread

if TYPE_CHECKING:
    from gspo_cli.training.study import Run


def check_combination(recipe: Recipe, algorithm: Algorithm, params: Any) -> None:
    """Errors: GspoError with the reason."""
    algo, tiny, lag = recipe.algo, recipe.model.tiny, recipe.rollout.max_lag
    own = algorithm.REDUCTION
    for broken, message, why, hint in (
        (
            algo.reduction not in (None, own) and algorithm.UNIT == "sequence",
            f"{algo.name} with reduction = {algo.reduction}",
            "a sequence ratio already holds the mean over its tokens; another mean weighs responses by their length "
            "(a token mean turns GSPO into LUSPO times N/T)",
            f"remove algo.reduction (it is {own}), or name luspo",
        ),
        (
            algo.reduction not in (None, own) and algorithm.UNIT == "token",
            f"{algo.name} with reduction = {algo.reduction}",
            f"{algo.name} is defined with {own}; the same clip with a token mean is dapo, with a token sum dr_grpo",
            "remove algo.reduction, or name the algorithm that has it",
        ),
        (
            getattr(algorithm, "NEEDS_SAMPLER", False) and algo.correction.kind != "none",
            f"{algo.name} with correction = {algo.correction.kind}",
            f"{algo.name} already weighs against the sampler's log-probabilities; twice would square the weight",
            "remove algo.correction",
        ),
        (
            algo.old_log_probs == "sampler" and algo.correction.kind != "none",
            f"old_log_probs = sampler with correction = {algo.correction.kind}",
            "the importance ratio then already holds the mismatch that the correction would weigh again",
            "remove algo.correction, or use old_log_probs = 'trainer'",
        ),
        (
            algo.name == "reinforce" and minibatches(recipe) > 1 and not params.allow_stale,
            f"reinforce with {minibatches(recipe)} mini-batches a rollout batch",
            "it has no ratio, so every update after the first would use stale data as if it were fresh",
            "algo.minibatches = 1, or algo.allow_stale = true to study just that",
        ),
        (
            algo.name == "reinforce" and lag > 0 and algo.correction.kind == "none" and not params.allow_stale,
            f"reinforce with rollout.max_lag = {lag}",
            "it has no ratio, so responses of older weights would count as if the policy had just drawn them",
            "algo.correction = { kind = 'tis' }, or algo.allow_stale = true to study just that",
        ),
        (
            algo.name != "reinforce" and lag > 0 and not sees_lag(algo, algorithm),
            f"{algo.name} with rollout.max_lag = {lag} and old_log_probs = trainer",
            "the trainer's are taken when a batch is trained on, so ratios against them miss how far the policy moved "
            "since it drew the batch",
            "algo.old_log_probs = 'sampler' (ratios against the policy that sampled), or algo.correction beside the "
            "trainer's, such as { kind = 'tis' }",
        ),
        (
            algo.name == "reinforce" and getattr(params, "dual_clip", None) is not None,
            "reinforce with dual_clip",
            "there is no ratio to clip",
            "remove algo.dual_clip",
        ),
        (
            getattr(params, "dual_clip", None) is not None and params.dual_clip <= 1,
            f"dual_clip = {getattr(params, 'dual_clip', None)}",
            "it bounds ratios from above for negative advantages; at 1 or below it would stop on-policy learning",
            "a value such as 3.0",
        ),
        (
            getattr(algorithm, "CRITIC", False) and algo.dynamic_sampling,
            f"{algo.name} with dynamic_sampling",
            "its advantages come from a critic, so groups without spread carry signal too",
            "remove algo.dynamic_sampling",
        ),
        (
            (algo.replay != "none" or recipe.rollout.routes) and tiny is not None and tiny.kind == "qwen3",
            f"{asked(recipe)} with a dense model",
            "model.tiny.kind = 'qwen3' has no experts to route to",
            "model.tiny.kind = 'qwen3_moe', or remove it",
        ),
    ):
        if broken:
            raise GspoError(message, why, hint)
    if recipe.model.lora is not None:
        require_peft("[model.lora]")
    if recipe.model.path is not None:
        refuse_adapter(recipe.model.path, "training")


def sees_lag(algo: AlgoConfig, algorithm: Algorithm) -> bool:
    """Whether anything in the objective compares the policy with the one that sampled."""
    sampler = algo.old_log_probs == "sampler" or getattr(algorithm, "NEEDS_SAMPLER", False)
    return sampler or algo.correction.kind != "none"


def check_recipe_engine(recipe: Recipe, trains: bool) -> None:
    """Errors: GspoError when the engine cannot do what the recipe asks, as far as the recipe tells."""
    tiny = recipe.model.tiny
    head_dim = None if tiny is None else tiny.head_dim or tiny.hidden // 4
    check_engine(recipe.rollout, pick_device(recipe.model.device).type, recipe.records_routes, trains, head_dim)


def asked(recipe: Recipe) -> str:
    """What in the recipe needs a model with routers."""
    return f"algo.replay = {recipe.algo.replay!r}" if recipe.algo.replay != "none" else "rollout.routes = true"


def check_routers(recipes: list[Recipe], start: Path) -> None:
    """Looks for the routers that a run needs in the start model's configuration, before any run begins.

    Errors: GspoError for a dense model, or one whose routers are not found.
    """
    needing = [r for r in recipes if r.algo.replay != "none" or r.rollout.routes]
    if not needing or not (start / "config.json").is_file():  # a hub name is looked at when it is loaded
        return
    code = code_arguments(start)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(start, **code), **code)
    except ValueError as error:
        raise load_error(f"cannot load the model {start}", str(start), error) from error
    needed_routing(model, asked(needing[0]))


def check_ranks(runs: list[Run], ranks: Ranks) -> None:
    """Errors: GspoError for what several ranks cannot train together."""
    machines = sorted(set(ranks.everywhere(lambda: ranks.local)))
    for run in runs:
        check_spread(run.recipe.rollout, ranks.size)
    for run in runs if ranks.size > 1 else ():
        engine, divide = run.recipe.rollout.engine, run.recipe.train.divide
        for broken, message, why, hint in (
            (
                run.recipe.model.lora is not None and engine != "transformers",
                f"[model.lora] with engine {engine} and {ranks.size} ranks",
                "an engine of its own is given whole weights, not adapters beside them",
                "rollout.engine = 'transformers', or remove [model.lora]",
            ),
            (
                divide == "machine" and len(machines) > 1,
                "train.divide = 'machine' on machines with unequal numbers of processes",
                f"they have {' and '.join(map(str, machines))}, so they cannot hold the same rows",
                "start as many on each, or train.divide = 'all'",
            ),
        ):
            if broken:
                raise GspoError(message, why, hint)


def minibatches(recipe: Recipe) -> int:
    """Optimizer steps per rollout batch of this arm."""
    return recipe.algo.minibatches or recipe.train.minibatches
