"""LUSPO: GSPO without its length normalisation of the objective.

J = 1/N sum_i |y_i| min(s_i A_i, clip(s_i) A_i)                                                       arXiv 2602.05261

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
    num_responses,
    per_token,
    sequence_log_ratio,
    sum_of_tokens,
)

UNIT: Literal["token", "sequence"] = "sequence"
REDUCTION = "seq-mean"
token_terms = sum_of_tokens


@dataclass(frozen=True)
class Params:
    """The published setting (arXiv 2602.05261)."""

    clip: Clip = Clip(low=2e-3, high=2.5e-3)
    dual_clip: float | None = None


def advantage(rewards_B: Tensor, groups_B: Tensor, params: Params) -> Tensor:
    """The group z-score: see `group_advantage`."""
    return group_advantage(rewards_B, groups_B)


def denominator(mask_BT: Tensor, params: Params) -> Tensor:
    """N, the number of responses."""
    return num_responses(mask_BT)


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                          arXiv 2602.05261, its objective

    Shapes: advantages [B].
    Differs from the paper: clipped in log space. The gradient norm is about |y| times GSPO's, so a
        fixed gradient clip is always active.
    """
    mask_BT = inputs.mask_BT
    log_ratio = sequence_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, mask_BT)
    advantages = per_token(inputs.advantages)
    surrogate = clipped_surrogate(log_ratio, advantages, params.clip, params.dual_clip, inputs.weights)
    return clipped_output(
        surrogate, log_ratio, inputs, params.clip.log_bounds,
        objective=sum_of_tokens(surrogate.value, mask_BT),
        denominator=denominator(mask_BT, params),
        gradient_weight_BT=torch.where(mask_BT, surrogate.weight, 0.0),
    )  # fmt: skip
