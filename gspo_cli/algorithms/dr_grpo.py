"""Dr. GRPO: GRPO without the divisions that favour short right and long wrong answers.

J = 1/(N L_max) sum_i sum_t min(w_it A_i, clip(w_it) A_i),  A_i = r_i - mean                      arXiv 2503.20783, §3.2

B = responses, T = token positions
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.clip import Clip, clipped_loss
from gspo_cli.algorithms.contract import LossInputs, LossOutput, Summary

UNIT = "token"
REDUCTION = "seq-mean-token-sum-norm"
token_terms = ops.sum_of_tokens
SUMMARY = Summary(advantage="r - mean")


@dataclass(frozen=True)
class Params:
    """PPO's clip; the length constant is the generation limit (arXiv 2503.20783, §3.2 and its code)."""

    clip: Clip = Clip(low=0.2, high=0.2)
    dual_clip: float | None = None
    max_length: int = 3000
    """L_max; a run puts its own generation limit here unless the recipe names another."""


def run_defaults(recipe: Any) -> dict[str, Any]:
    """L_max is the run's own generation limit."""
    return {"max_length": recipe.rollout.max_new_tokens}


def advantage(rewards_B: Tensor, groups_B: Tensor, params: Params) -> Tensor:
    """r - mean, not divided by the deviation."""
    return ops.group_advantage(rewards_B, groups_B, scale=False)


def denominator(mask_BT: Tensor, params: Params) -> Tensor:
    """N * L_max: a constant per response, never the width of the batch."""
    return ops.num_responses(mask_BT) * params.max_length


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                     arXiv 2503.20783, §3.2

    Differs from the paper: clipped in log space.
    """
    log_ratio = ops.token_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, inputs.mask_BT)
    return clipped_loss(log_ratio, inputs, params, ops.sum_of_tokens, denominator(inputs.mask_BT, params))
