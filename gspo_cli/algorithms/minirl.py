"""MiniRL: the policy gradient with a sampler correction, and GRPO's clip as a mask.

J = 1/N sum_i sum_t M_it sg[min(pi/mu, cap)] A_i l_it,  M_it = 0 where GRPO would clip w_it     arXiv 2512.01374, Eq. 7

B = responses, T = token positions
"""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.clip import Clip, clipped_surrogate
from gspo_cli.algorithms.contract import LossInputs, LossOutput, Summary
from gspo_cli.types import Mean

UNIT = "token"
REDUCTION = "seq-mean-token-sum"
token_terms = ops.sum_of_tokens
denominator = ops.num_responses
NEEDS_SAMPLER = True
"""The weight is taken against the engine's log-probabilities, so no other sampler correction is allowed."""
SUMMARY = Summary(ratio="token w; weight pi / mu <= {cap}", advantage="r - mean")


@dataclass(frozen=True)
class Params:
    """The published setting (arXiv 2512.01374, §4.2)."""

    clip: Clip = Clip(low=0.2, high=0.27)
    cap: float = 5.0
    """Largest weight."""


def advantage(rewards_B: Tensor, groups_B: Tensor, params: Params) -> Tensor:
    """r - mean, not divided by the deviation."""
    return ops.group_advantage(rewards_B, groups_B, scale=False)


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                    arXiv 2512.01374, Eq. 7

    Errors: asserts that the sampler's log-probabilities are given.
    Differs from the paper: nothing known. The loss value depends on l and means nothing.
    """
    assert inputs.sampler_log_probs_BT is not None, "minirl needs the sampler's log-probabilities"
    log_probs_BT, mask_BT, scale = inputs.log_probs_BT.detach(), inputs.mask_BT, ops.weighted_advantages(inputs)
    log_ratio_BT = ops.token_log_ratio(log_probs_BT, inputs.old_log_probs_BT, mask_BT)
    surrogate = clipped_surrogate(log_ratio_BT, inputs, params.clip)
    log_weight_BT = ops.token_log_ratio(log_probs_BT, inputs.sampler_log_probs_BT, mask_BT)
    weight_BT = torch.where(surrogate.clipped_BT, 0.0, ops.capped_weight(log_weight_BT, params.cap) * scale)
    capped_BT = (log_weight_BT > log(params.cap)) & mask_BT
    metrics = surrogate.metrics | {"weight/capped_frac": Mean(capped_BT.sum(), mask_BT.sum())}
    return ops.score_loss(weight_BT, inputs, denominator(mask_BT, params), surrogate.clipped_BT, metrics)
