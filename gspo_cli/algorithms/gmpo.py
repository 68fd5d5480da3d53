"""GMPO: token log-ratios are clamped first, then pooled into one geometric mean a response.

J = 1/N sum_i g_i A_i,  log g_i = 1/|y_i| sum_t clamp(log w_it)                                  arXiv 2507.20673, Eq. 4

B = responses, T = token positions
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gspo_cli.algorithms.contract import LossOutput
from gspo_cli.algorithms.metrics import clip_metrics
from gspo_cli.algorithms.ops import (
    SATURATION,
    group_advantage,
    num_responses,
    per_token,
    saturate,
    sum_of_sequences,
    sum_of_token_means,
    token_log_ratio,
    token_shares,
)

UNIT: Literal["token", "sequence"] = "sequence"
REDUCTION = "seq-mean"
ONE_ADVANTAGE = True
token_terms = sum_of_token_means


@dataclass(frozen=True)
class Params:
    """The published range e^-0.4 .. e^0.4 (arXiv 2507.20673, §4); its authors advise 0.2 for mixtures of experts."""

    log_clip_low: float = 0.4
    log_clip_high: float = 0.4
    """Bounds of the token log-ratio, in nats."""

    def __post_init__(self) -> None:
        if min(self.log_clip_low, self.log_clip_high) <= 0:
            raise ValueError("log_clip_low and log_clip_high must be positive (they are distances from 0 in nats)")


def advantage(rewards_B: Tensor, groups_B: Tensor, params: Params) -> Tensor:
    """The group z-score: see `group_advantage`."""
    return group_advantage(rewards_B, groups_B)


def denominator(mask_BT: Tensor, params: Params) -> Tensor:
    """N, the number of responses."""
    return num_responses(mask_BT)


def loss(
    log_probs_BT: Tensor,
    old_log_probs_BT: Tensor,
    advantages: Tensor,
    mask_BT: Tensor,
    params: Params,
    *,
    sampler_log_probs_BT: Tensor | None = None,
    weights: Tensor | None = None,
) -> LossOutput:
    """-J of one micro-batch.                                                                    arXiv 2507.20673, Eq. 4

    The clamp acts above for A > 0, below for A < 0, on each token, before the mean (GSPO: after it).
    Shapes: log-probabilities in nats [B, T]; advantages [B]; mask bool [B, T].
    Differs from the paper: nothing but the saturation of pooled log-ratios beyond +-20.
    """
    log_ratio_BT = token_log_ratio(log_probs_BT, old_log_probs_BT, mask_BT)
    sign_B1, bounds = per_token(advantages), (-params.log_clip_low, params.log_clip_high)
    above_BT, below_BT = (sign_B1 > 0) & (log_ratio_BT > bounds[1]), (sign_B1 < 0) & (log_ratio_BT < bounds[0])
    clamped_BT = torch.where(above_BT, bounds[1], torch.where(below_BT, bounds[0], log_ratio_BT))
    length_B1 = mask_BT.sum(-1, keepdim=True).clamp(min=1)
    pooled_B1 = torch.where(mask_BT, clamped_BT, 0.0).sum(-1, keepdim=True) / length_B1
    scale_B1 = sign_B1 if weights is None else sign_B1 * per_token(weights)
    terms_B1 = torch.where(scale_B1 == 0, 0.0, saturate(pooled_B1).exp() * scale_B1)
    clipped_BT = (above_BT | below_BT) & mask_BT
    flows_BT = ~clipped_BT & (pooled_B1.abs() <= SATURATION)
    return LossOutput(
        loss_numerator=-sum_of_sequences(terms_B1, mask_BT),
        denominator=denominator(mask_BT, params),
        gradient_weight_BT=token_shares(torch.where(flows_BT, terms_B1, 0.0).detach(), mask_BT),
        clipped_BT=clipped_BT,
        metrics=clip_metrics(log_ratio_BT, advantages, mask_BT, clipped_BT, bounds),
    )
