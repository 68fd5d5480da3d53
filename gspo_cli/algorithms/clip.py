"""The hard clip of an importance ratio: its range, the clipped surrogate, and which gradients it takes away.

B = responses, T = token positions
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log, log1p
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gspo_cli.algorithms.contract import LossInputs, LossOutput
from gspo_cli.algorithms.ops import (
    SATURATION,
    capped_weight,
    per_token,
    saturate,
    score_loss,
    sum_of_tokens,
    token_log_ratio,
    token_shares,
    weighted_advantages,
)
from gspo_cli.types import Mean, Reduced

MOST = 1e9
"""A range as large as that clips nothing; beyond float32 it could not be compared."""


@dataclass(frozen=True, slots=True)
class Clip:
    """A clip range: ratios inside [1 - low, 1 + high] keep their gradient."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < 1:
            raise ValueError("clip.low must lie between 0 and 1 (it is subtracted from 1)")
        if not 0 < self.high <= MOST:
            raise ValueError(f"clip.high must be positive, and at most {MOST:g} (it is added to 1)")

    @property
    def log_bounds(self) -> tuple[float, float]:
        """The bounds of the log-ratio."""
        return log1p(-self.low), log1p(self.high)


def beyond(x: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Where a clip acts: above the upper edge for A > 0, below the lower one for A < 0; on the edge it does not."""
    return ((advantages > 0) & (x > high)) | ((advantages < 0) & (x < low))


class Surrogate(NamedTuple):
    """min(x A, clip(x) A) and what was clipped; `value` and `weight` have the log-ratio's shape, broadcast to A's."""

    value: Tensor
    weight: Tensor
    """d value / d log x, detached: x A where the gradient flows, else 0."""
    clipped_BT: Tensor
    """True for loss tokens whose gradient the clip range makes 0."""
    metrics: dict[str, Reduced]
    """The clip/* metrics."""


def clipped_surrogate(log_ratio: Tensor, inputs: LossInputs, clip: Clip, dual_clip: float | None = None) -> Surrogate:
    """min(x A, clip(x, 1 - low, 1 + high) A), times a detached weight.       arXiv 1707.06347, Eq. 7; 2507.18071, Eq. 5

    The clip acts on one side only: above for A > 0, below for A < 0; strictly, so a ratio on the edge keeps its
    gradient. `dual_clip` = c bounds the other side of A < 0: the value is c A where x > c  (arXiv 1912.09729, Eq. 5).
    Differs from the papers: written as a choice between bound and ratio, which has the same value and an unambiguous
        gradient; compared in log space; log-ratios beyond +-20 count as +-20 without gradient.
    """
    advantages, mask_BT = per_token(inputs.advantages), inputs.mask_BT
    clipped = beyond(log_ratio, advantages, *clip.log_bounds)
    clipped_BT = clipped & mask_BT
    metrics = clip_metrics(log_ratio, advantages, mask_BT, clipped_BT, clip.log_bounds)
    # filled in the ratio's own precision: a choice between two Python numbers would be float32
    bound = torch.full_like(log_ratio, 1.0 - clip.low).masked_fill(log_ratio > 0, 1.0 + clip.high)
    ratio = torch.where(clipped, bound, saturate(log_ratio).exp())
    flows = ~clipped & (log_ratio.abs() <= SATURATION)
    if dual_clip is not None:
        dual = (advantages < 0) & (log_ratio > log(dual_clip))
        ratio = torch.where(dual, dual_clip, ratio)
        flows = flows & ~dual
        metrics["clip/dual_frac"] = Mean((dual & mask_BT).sum(), mask_BT.sum())
    scale = weighted_advantages(inputs)
    # an advantage of 0 must give exactly 0, whatever the ratio
    value = torch.where(scale == 0, 0.0, ratio * scale)
    return Surrogate(value, torch.where(flows, ratio * scale, 0.0).detach(), clipped_BT, metrics)


def clipped_loss(
    log_ratio: Tensor, inputs: LossInputs, params: Any, reduce: Callable[[Tensor, Tensor], Tensor], denominator: Tensor
) -> LossOutput:
    """-J of an algorithm whose terms are the clipped surrogate; `reduce` is the sum of `ops` that makes the numerator.

    `params` has `clip` and `dual_clip`. All sums but `sum_of_tokens` hold a mean over each response.
    """
    surrogate, mask_BT = clipped_surrogate(log_ratio, inputs, params.clip, params.dual_clip), inputs.mask_BT
    if reduce is sum_of_tokens:
        weight_BT = torch.where(mask_BT, surrogate.weight, 0.0)
    else:
        weight_BT = token_shares(surrogate.weight, mask_BT)
    numerator = -reduce(surrogate.value, mask_BT)
    return LossOutput(numerator, denominator, weight_BT, surrogate.clipped_BT, surrogate.metrics)


def trust_region_loss(change_BT: Tensor, inputs: LossInputs, params: Any, denominator: Tensor) -> LossOutput:
    """-J of policy gradients weighted by min(w, cap), without the tokens that changed too far in A's direction.

    `change_BT`: how far a token is from the old policy, negative where it is less probable now.
    `params` has `delta_low`, `delta_high` and `cap`.
    """
    mask_BT, advantages, edges = inputs.mask_BT, per_token(inputs.advantages), (-params.delta_low, params.delta_high)
    log_ratio_BT = token_log_ratio(inputs.log_probs_BT.detach(), inputs.old_log_probs_BT, mask_BT)
    clipped_BT = beyond(change_BT, advantages, *edges) & mask_BT
    weight_BT = capped_weight(log_ratio_BT, params.cap) * weighted_advantages(inputs)
    capped_BT = (log_ratio_BT > log(params.cap)) & mask_BT
    metrics = clip_metrics(change_BT, advantages, mask_BT, clipped_BT, edges)
    metrics["weight/capped_frac"] = Mean(capped_BT.sum(), mask_BT.sum())
    return score_loss(torch.where(clipped_BT, 0.0, weight_BT), inputs, denominator, clipped_BT, metrics)


def clip_metrics(
    log_ratio: Tensor, advantages: Tensor, mask_BT: Tensor, clipped_BT: Tensor, log_bounds: tuple[float, float]
) -> dict[str, Reduced]:
    """Shares of tokens and responses whose gradient the clip makes 0.

    Where a response has one ratio, all its tokens are clipped or none. `ratio/outside_frac` is the other number often
    called clip fraction: ratios outside the range, whatever the sign of the advantage.
    """
    sign_BT = per_token(advantages).expand_as(mask_BT)
    response_B = mask_BT.any(-1)
    outside_BT = ((log_ratio < log_bounds[0]) | (log_ratio > log_bounds[1])) & mask_BT
    tokens, responses = mask_BT.sum(), response_B.sum()
    return {
        "clip/token_frac": Mean(clipped_BT.sum(), tokens),
        "clip/token_frac_active": Mean(clipped_BT.sum(), (mask_BT & (sign_BT != 0)).sum()),
        "clip/low_frac": Mean((clipped_BT & (sign_BT < 0)).sum(), tokens),
        "clip/high_frac": Mean((clipped_BT & (sign_BT > 0)).sum(), tokens),
        "clip/seq_frac": Mean((torch.eq(clipped_BT, mask_BT).all(-1) & response_B).sum(), responses),
        "clip/seq_any_frac": Mean(clipped_BT.any(-1).sum(), responses),
        "ratio/outside_frac": Mean(outside_BT.sum(), tokens),
    }
