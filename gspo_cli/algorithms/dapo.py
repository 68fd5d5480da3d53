"""DAPO: GRPO with a higher upper clip and one mean over all tokens.

J = 1/T sum_i sum_t min(w_it A_i, clip(w_it) A_i)                                       arXiv 2503.14476, Eq. 8

B = responses, T = token positions
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gspo_cli.algorithms.contract import Clip, LossInputs, LossOutput
from gspo_cli.algorithms.metrics import clipped_output
from gspo_cli.algorithms.ops import (
    clipped_surrogate,
    group_advantage,
    num_tokens,
    per_token,
    sum_of_tokens,
    token_log_ratio,
)

UNIT: Literal["token", "sequence"] = "token"
REDUCTION = "token-mean"
token_terms = sum_of_tokens
PRESET = {"dynamic_sampling": True, "truncation": "mask", "overlong_cache_frac": 0.2}
"""§3.2 (drop groups without spread, sample on), §3.4 (overlong filter; penalty over the last fifth of the length)."""


@dataclass(frozen=True)
class Params:
    """Clip-Higher (arXiv 2503.14476, §3.1); published with 16 optimizer steps a rollout batch."""

    clip: Clip = Clip(low=0.2, high=0.28)
    dual_clip: float | None = None


def advantage(rewards_B: Tensor, groups_B: Tensor, params: Params) -> Tensor:
    """The group z-score: see `group_advantage`."""
    return group_advantage(rewards_B, groups_B)


def denominator(mask_BT: Tensor, params: Params) -> Tensor:
    """T, the number of loss tokens."""
    return num_tokens(mask_BT)


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                    arXiv 2503.14476, Eq. 8

    Differs from the paper: clipped in log space; the paper's dynamic sampling, overlong filter and penalty are
        general `[algo]` keys that `PRESET` switches on.
    """
    mask_BT = inputs.mask_BT
    log_ratio = token_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, mask_BT)
    advantages = per_token(inputs.advantages)
    surrogate = clipped_surrogate(log_ratio, advantages, params.clip, params.dual_clip, inputs.weights)
    return clipped_output(
        surrogate, log_ratio, inputs, params.clip.log_bounds,
        objective=sum_of_tokens(surrogate.value, mask_BT),
        denominator=denominator(mask_BT, params),
        gradient_weight_BT=torch.where(mask_BT, surrogate.weight, 0.0),
    )  # fmt: skip
