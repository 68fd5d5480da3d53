"""Refuse recipes that mathematics, model or machine forbid, before anything is loaded."""

from math import inf
from pathlib import Path
from typing import Any

from gspo_cli.algorithms import AlgorithmSpec
from gspo_cli.algorithms.correction import BOUNDS, MASKS, ONE_BOUND
from gspo_cli.config import Recipe
from gspo_cli.distributed import Ranks
from gspo_cli.errors import GspoError
from gspo_cli.models.adapters import refuse_adapter, require_peft
from gspo_cli.models.remote_code import code_arguments
from gspo_cli.rollout.engine import check_engine, check_spread
from gspo_cli.runlog.schema import metric


def check_combination(recipe: Recipe, algorithm: AlgorithmSpec, params: Any) -> None:
    """Checks one arm's recipe: settings against each other, then whatever the algorithm's own `check` refuses.

    Errors: GspoError with the reason.
    """
    algo, tiny, lag = recipe.algo, recipe.model.tiny, recipe.rollout.max_lag
    needs_sampler, dual_clip = algorithm.NEEDS_SAMPLER, getattr(params, "dual_clip", None)
    corrected, sampler_is_old = algo.correction.kind not in MASKS, algo.old_log_probs == "sampler"
    correction, (least, most) = algo.correction, BOUNDS.get(algo.correction.kind, (0.0, inf))
    low, high = correction.low, correction.high
    critic = algorithm.token_advantages is not None
    router_noise = recipe.noise is not None and recipe.noise.experts > 0
    sees_lag = sampler_is_old or needs_sampler or corrected
    for forbidden, message, why, hint in (
        (
            correction.kind == "none" and (low, high) != (None, None),
            "algo.correction with a bound and no kind",
            "a bound belongs to a kind of correction, and none is switched on",
            "algo.correction.kind, such as 'tis', or remove the bound",
        ),
        (
            low is not None and correction.kind in ONE_BOUND,
            f"algo.correction.low with kind = {correction.kind}",
            f"{correction.kind} has no lower bound",
            "remove algo.correction.low",
        ),
        (
            (least if low is None else low) >= (high or most),
            f"algo.correction from {least if low is None else low:g} to {high or most:g}",
            "no weight lies between these bounds, so nothing would be learned",
            "set both bounds, the lower one below the upper one",
        ),
        (
            needs_sampler and corrected,
            f"{algo.name} with correction = {algo.correction.kind}",
            f"{algo.name} already weighs against the sampler's log-probabilities; twice would square the weight",
            "remove algo.correction",
        ),
        (
            sampler_is_old and corrected,
            f"old_log_probs = sampler with correction = {algo.correction.kind}",
            "the importance ratio then already holds the mismatch that the correction would weigh again",
            "remove algo.correction, or use old_log_probs = 'trainer'",
        ),
        (
            lag > 0 and algorithm.HAS_RATIO and not sees_lag,
            f"{algo.name} with rollout.max_lag = {lag} and old_log_probs = trainer",
            "the trainer's log-probabilities are taken when a batch is trained on, so ratios against them miss how far "
            "the policy moved since it drew the batch",
            "algo.old_log_probs = 'sampler' (ratios against the policy that sampled), or algo.correction beside the "
            "trainer's, such as { kind = 'tis' }",
        ),
        (
            router_noise and (algo.replay == "r3" or sampler_is_old),
            "noise.experts with " + ("old_log_probs = 'sampler'" if sampler_is_old else "algo.replay = 'r3'"),
            "router noise is put into the trainer's pass over the old policy; the engine samples without it",
            "algo.replay = 'r2' and old_log_probs = 'trainer', or remove noise.experts",
        ),
        (
            dual_clip is not None and dual_clip <= 1,
            f"dual_clip = {dual_clip}",
            "it bounds ratios from above for negative advantages; at 1 or below it would stop on-policy learning",
            "choose a value above 1, such as 3.0",
        ),
        (
            critic and algo.dynamic_sampling,
            f"{algo.name} with dynamic_sampling",
            "its advantages come from a critic, so groups without spread carry a signal too",
            "remove algo.dynamic_sampling",
        ),
        (
            recipe.task.combine == "gdpo"
            and (algorithm.token_advantages is not None or bool(algo.overlong_cache_frac)),
            "task.combine = 'gdpo' with "
            + (algo.name if algorithm.token_advantages is not None else "algo.overlong_cache_frac"),
            "it makes the advantages from the single rewards, and neither a critic nor a punishment of the sum is one",
            "task.combine = 'sum', another algorithm, or a reward `length`",
        ),
        (
            routing_setting(recipe) is not None and tiny is not None and tiny.kind == "qwen3",
            f"{routing_setting(recipe)} with a dense model",
            "model.tiny.kind = 'qwen3' has no experts to route to",
            "model.tiny.kind = 'qwen3_moe', or remove the setting",
        ),
    ):
        if forbidden:
            raise GspoError(message, why, hint)
    if (best := recipe.checkpoint.best) is not None and not {"rollout", "step"} & {*metric(best).lines.split(", ")}:
        raise GspoError(f"checkpoint.best = {best}", "it has no value per rollout batch", "e.g. reward/mean")
    algorithm.check(recipe, params)
    if recipe.model.lora is not None:
        require_peft("[model.lora]")
    if recipe.model.path is not None:
        refuse_adapter(recipe.model.path, "training")


def check_recipe_engine(recipe: Recipe, trains: bool) -> None:
    """Errors: GspoError when the engine cannot do what the recipe asks, as far as the recipe shows."""
    from gspo_cli.models.device import pick_device  # loads torch

    tiny = recipe.model.tiny
    head_dim = None if tiny is None else tiny.head_dim or tiny.hidden // 4
    check_engine(recipe.rollout, pick_device(recipe.model.device).type, recipe.records_routes, trains, head_dim)


def routing_setting(recipe: Recipe) -> str | None:
    """The setting that needs a model with routers, for messages; None if there is none."""
    return recipe.replays or ("rollout.routes = true" if recipe.rollout.routes else None)


def check_routers(recipes: list[Recipe], start: Path) -> None:
    """Errors: GspoError when runs need routers and the start model, as far as its folder shows, has none, or replay its
    routes and nobody knows how it weighs its experts."""
    settings = [setting for recipe in recipes if (setting := routing_setting(recipe))]
    if not settings or not (start / "config.json").is_file():  # a hub name is checked when the model is loaded
        return
    import torch  # with a model to look into, not for a check of keys
    from transformers import AutoConfig, AutoModelForCausalLM

    from gspo_cli.models.files import loading
    from gspo_cli.moe.routers import needed_routing, replayable

    with loading(f"the model {start}", str(start)), torch.device("meta"):
        code = code_arguments(start)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(start, **code), **code)
    needed_routing(model, settings[0])
    for replays in {recipe.replays for recipe in recipes if recipe.replays}:
        replayable(model, replays)


def check_ranks(recipes: list[Recipe], ranks: Ranks) -> None:
    """Errors: GspoError for a recipe that this number of ranks cannot train together."""
    machine_sizes = sorted(set(ranks.all_gather(lambda: ranks.local)))
    for recipe in recipes:
        check_spread(recipe.rollout, ranks.size)
    for recipe in recipes if ranks.size > 1 else ():
        engine = recipe.rollout.engine
        if recipe.model.lora is not None and engine != "transformers":
            raise GspoError(
                f"[model.lora] with engine {engine} and {ranks.size} ranks",
                "an engine outside the trainer takes whole weights, not adapters beside them",
                "rollout.engine = 'transformers', or remove [model.lora]",
            )
        if recipe.train.divide == "machine" and len(machine_sizes) > 1:
            raise GspoError(
                "train.divide = 'machine' on machines with unequal numbers of processes",
                f"they have {' and '.join(map(str, machine_sizes))}, so they cannot hold the same rows",
                "start as many on each, or train.divide = 'all'",
            )
