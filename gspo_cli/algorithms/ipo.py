"""IPO: tokens whose probability moved too far either way lose their policy gradient; all are pulled back.

J = 1/T sum_i sum_t (1[|p - q| <= eps] w_it A_i - kl_tau (log w_it)^2)                  prime-rl, ipo_loss_fn (loss.py)

p = the token's probability now, q = under the policy that sampled.

B = responses, T = token positions
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.clip import clip_metrics
from gspo_cli.algorithms.contract import LossInputs, LossOutput, Summary

UNIT = "token"
REDUCTION = "token-mean"
token_terms = ops.sum_of_tokens
denominator = ops.num_tokens
PRESET = {"old_log_probs": "sampler"}
"""Ratio and distance are to the policy that sampled."""
EVERY_ROW = True
SUMMARY = Summary(
    positive="|p - q| <= {eps}; pull to w = 1", negative="|p - q| <= {eps}; pull to w = 1", advantage="r - mean"
)


@dataclass(frozen=True)
class Params:
    """The defaults of prime-rl's `IPOLossConfig`; it has no paper."""

    eps: float = 0.1
    """How far a token's probability may move, either way."""
    kl_tau: float = 1e-3
    """Weight of the squared log-ratio."""

    def __post_init__(self) -> None:
        if not 0 < self.eps < 1:
            raise ValueError("eps must lie between 0 and 1 (it is the change of a probability)")
        if self.kl_tau < 0:
            raise ValueError("kl_tau must not be negative (it would reward leaving the old policy)")


def advantage(rewards_B: Tensor, groups_B: Tensor, params: Params) -> Tensor:
    """r - mean, not divided by the deviation."""
    return ops.group_advantage(rewards_B, groups_B, scale=False)


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                      prime-rl, ipo_loss_fn

    `clipped_BT` marks tokens without a policy gradient; the pull back to the old policy stays.
    Differs from prime-rl: nothing but the saturation of log-ratios beyond +-20.
    """
    mask_BT, advantages = inputs.mask_BT, ops.per_token(inputs.advantages)
    now_BT, old_BT = (ops.log_probability(x, mask_BT).exp() for x in (inputs.log_probs_BT, inputs.old_log_probs_BT))
    change_BT = now_BT - old_BT
    far_BT = (change_BT.abs() > params.eps) & mask_BT
    log_ratio_BT = ops.token_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, mask_BT)
    limited_BT, flows_BT = ops.saturate(log_ratio_BT), log_ratio_BT.abs() <= ops.SATURATION
    scale = ops.weighted_advantages(inputs)
    pull = params.kl_tau if inputs.weights is None else params.kl_tau * ops.per_token(inputs.weights)
    gain_BT = torch.where(far_BT | (scale == 0), 0.0, limited_BT.exp() * scale)
    slope_BT = (gain_BT - 2 * pull * limited_BT).detach()
    clipped_BT = far_BT & (advantages != 0)
    return LossOutput(
        loss_numerator=-ops.sum_of_tokens(gain_BT - pull * limited_BT.square(), mask_BT),
        denominator=denominator(mask_BT, params),
        gradient_weight_BT=torch.where(mask_BT & flows_BT, slope_BT, 0.0),
        clipped_BT=clipped_BT,
        metrics=clip_metrics(change_BT, advantages, mask_BT, clipped_BT, (-params.eps, params.eps)),
    )
