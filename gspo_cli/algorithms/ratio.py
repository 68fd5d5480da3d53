"""Importance ratios and the clipped surrogate, in log space.

B = responses, T = token positions. A sequence ratio is [B, 1] and broadcasts over the tokens.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from gspo_cli.algorithms.contract import Clip
from gspo_cli.algorithms.reduction import per_token

SATURATION = 20.0  # a log-ratio beyond this is taken as the constant +-20: exp() stays finite, the gradient is 0


def token_log_ratio(log_probs_BT: Tensor, old_log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """log w_it = l_it - o_it at loss tokens, 0 elsewhere: [B, T].                               arXiv 2507.18071, Eq. 2

    Errors: asserts float32 or better; 1 + 4e-4 is exactly 1 in half precision, so such a ratio never clips.
    """
    assert log_probs_BT.dtype in (torch.float32, torch.float64), "log-probabilities must be float32 or better"
    # NaN or infinity in padding survives a product with 0, in value and in gradient: select first, then subtract
    return torch.where(mask_BT, log_probs_BT, 0.0) - torch.where(mask_BT, old_log_probs_BT, 0.0)


def sequence_log_ratio(log_probs_BT: Tensor, old_log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """log s_i = 1/|y_i| * sum_t (l_it - o_it): [B, 1].                                          arXiv 2507.18071, Eq. 7

    A response without tokens gives 0.
    """
    log_ratio_BT = token_log_ratio(log_probs_BT, old_log_probs_BT, mask_BT)
    return log_ratio_BT.sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)


def sequence_token_log_ratio(log_probs_BT: Tensor, old_log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """log s_it = (l_it - sg[l_it]) + sg[log s_i]: [B, T].                                      arXiv 2507.18071, Eq. 14

    Its value is the sequence's log-ratio to the bit, its gradient the token's.
    """
    log_s_B1 = sequence_log_ratio(log_probs_BT, old_log_probs_BT, mask_BT).detach()
    log_probs_BT = torch.where(mask_BT, log_probs_BT, 0.0)
    # in this order: (sg[log s] + l) - sg[l] would lose the digits that decide a clip
    return (log_probs_BT - log_probs_BT.detach()) + log_s_B1


class Surrogate(NamedTuple):
    """min(x A, clip(x) A) with what a metric or a test wants to know of it; shapes broadcast to the log-ratio's."""

    value: Tensor
    weight: Tensor
    """d value / d log x, detached: x A where the gradient flows, else 0."""
    clipped: Tensor
    """True where the clip range makes the gradient 0."""
    dual_clipped: Tensor | None
    """True where the dual clip does; None without one."""


def clipped_surrogate(
    log_ratio: Tensor,
    advantages: Tensor,
    clip: Clip,
    dual_clip: float | None = None,
    weights: Tensor | None = None,
) -> Surrogate:
    """min(x A, clip(x, 1 - low, 1 + high) A), times a detached weight.       arXiv 1707.06347, Eq. 7; 2507.18071, Eq. 5

    The clip acts on one side only: above for A > 0, below for A < 0; strictly, so a ratio on the edge keeps its
    gradient. `dual_clip` = c bounds the other side of A < 0: the value is c A where x > c  (arXiv 1912.09729, Eq. 5).
    Differs from the papers: written as a choice between bound and ratio, which has the same value and an unambiguous
        gradient; compared in log space; log-ratios beyond +-20 count as +-20 without gradient.
    """
    low, high = clip.log_bounds
    clipped = ((advantages > 0) & (log_ratio > high)) | ((advantages < 0) & (log_ratio < low))
    # filled in the ratio's own precision: a choice between two Python numbers would be float32
    bound = torch.full_like(log_ratio, 1.0 - clip.low).masked_fill(log_ratio > 0, 1.0 + clip.high)
    ratio = torch.where(clipped, bound, saturate(log_ratio).exp())
    dual = None
    if dual_clip is not None:
        dual = (advantages < 0) & (log_ratio > log(dual_clip))
        ratio = torch.where(dual, dual_clip, ratio)
    scale = advantages if weights is None else advantages * per_token(weights)
    flows = ~clipped & (log_ratio.abs() <= SATURATION)
    if dual is not None:
        flows = flows & ~dual
    # an advantage of 0 must give exactly 0, whatever the ratio
    value = torch.where(scale == 0, 0.0, ratio * scale)
    return Surrogate(value, torch.where(flows, ratio * scale, 0.0).detach(), clipped, dual)


def saturate(log_ratio: Tensor) -> Tensor:
    """The log-ratio limited to +-20, with no gradient beyond."""
    return log_ratio.clamp(-SATURATION, SATURATION)


def capped_weight(log_ratio: Tensor, cap: float) -> Tensor:
    """sg[min(x, cap)]: a weight that bounds a token's influence without taking it away."""
    return saturate(log_ratio).exp().clamp(max=cap).detach()
