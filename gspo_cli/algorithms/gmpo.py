"""GMPO: token log-ratios are clamped first, then pooled into one geometric mean a response.

J = 1/N sum_i g_i A_i,  log g_i = 1/|y_i| sum_t clamp(log w_it)                                  arXiv 2507.20673, Eq. 4

B = responses, T = token positions
"""

from dataclasses import dataclass
from math import expm1

import torch

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.clip import Clip, clip_metrics
from gspo_cli.algorithms.contract import LossInputs, LossOutput, Summary

UNIT = "sequence"
REDUCTION = "seq-mean"
ONE_ADVANTAGE = True
CLIP_UNIT = "token"
token_terms = ops.sum_of_token_means
advantage = ops.group_advantage
denominator = ops.num_responses
SUMMARY = Summary(ratio="geometric mean of the clipped token w")


@dataclass(frozen=True)
class Params:
    """The published range e^-0.4 .. e^0.4 (arXiv 2507.20673, §4); its authors advise 0.2 for mixtures of experts."""

    log_clip_low: float = 0.4
    log_clip_high: float = 0.4
    """Bounds of the token log-ratio, in nats."""

    def __post_init__(self) -> None:
        if min(self.log_clip_low, self.log_clip_high) <= 0:
            raise ValueError("log_clip_low and log_clip_high must be positive (they are distances from 0 in nats)")

    @property
    def clip(self) -> Clip:
        """The same range for a ratio."""
        return Clip(-expm1(-self.log_clip_low), expm1(self.log_clip_high))


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                    arXiv 2507.20673, Eq. 4

    The clamp acts above for A > 0, below for A < 0, on each token, before the mean (GSPO: after it).
    Shapes: advantages [B].
    Differs from the paper: nothing but the saturation of pooled log-ratios beyond +-20.
    """
    mask_BT, sign_B1 = inputs.mask_BT, ops.per_token(inputs.advantages)
    log_ratio_BT = ops.token_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, mask_BT)
    bounds = (-params.log_clip_low, params.log_clip_high)
    above_BT, below_BT = (sign_B1 > 0) & (log_ratio_BT > bounds[1]), (sign_B1 < 0) & (log_ratio_BT < bounds[0])
    clamped_BT = torch.where(above_BT, bounds[1], torch.where(below_BT, bounds[0], log_ratio_BT))
    length_B1 = mask_BT.sum(-1, keepdim=True).clamp(min=1)
    pooled_B1 = torch.where(mask_BT, clamped_BT, 0.0).sum(-1, keepdim=True) / length_B1
    scale_B1 = ops.weighted_advantages(inputs)
    terms_B1 = torch.where(scale_B1 == 0, 0.0, ops.saturate(pooled_B1).exp() * scale_B1)
    clipped_BT = (above_BT | below_BT) & mask_BT
    flows_BT = ~clipped_BT & (pooled_B1.abs() <= ops.SATURATION)
    return LossOutput(
        loss_numerator=-ops.sum_of_sequences(terms_B1, mask_BT),
        denominator=denominator(mask_BT, params),
        gradient_weight_BT=ops.token_shares(torch.where(flows_BT, terms_B1, 0.0).detach(), mask_BT),
        clipped_BT=clipped_BT,
        metrics=clip_metrics(log_ratio_BT, inputs.advantages, mask_BT, clipped_BT, bounds),
    )
