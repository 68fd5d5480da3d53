"""Combinations that the mathematics forbids, refused before anything is loaded."""

from __future__ import annotations

from typing import Any

from gspo_cli.algorithms import Algorithm
from gspo_cli.config import Recipe
from gspo_cli.errors import GspoError


def check_combination(recipe: Recipe, algorithm: Algorithm, params: Any) -> None:
    """Errors: GspoError with the reason."""
    algo = recipe.algo
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
    ):
        if broken:
            raise GspoError(message, why, hint)


def minibatches(recipe: Recipe) -> int:
    """Optimizer steps per rollout batch of this arm."""
    return recipe.algo.minibatches or recipe.train.minibatches
