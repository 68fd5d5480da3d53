"""What a hard clip did: the clip/* and ratio/outside_frac metrics, by exact definition.

B = responses, T = token positions
"""

from __future__ import annotations

import torch
from torch import Tensor

from gspo_cli.algorithms.contract import LossOutput
from gspo_cli.algorithms.ratio import Surrogate
from gspo_cli.algorithms.reduction import per_token
from gspo_cli.types import Mean, Reduced


def clipped_output(
    surrogate: Surrogate,
    log_ratio: Tensor,
    advantages: Tensor,
    mask_BT: Tensor,
    log_bounds: tuple[float, float],
    objective: Tensor,
    denominator: Tensor,
    gradient_weight_BT: Tensor,
) -> LossOutput:
    """The output of an algorithm with a hard clip; `objective` is the numerator of J."""
    clipped_BT = surrogate.clipped & mask_BT
    metrics = clip_metrics(log_ratio, advantages, mask_BT, clipped_BT, log_bounds)
    if surrogate.dual_clipped is not None:
        metrics["clip/dual_frac"] = Mean((surrogate.dual_clipped & mask_BT).sum(), mask_BT.sum())
    return LossOutput(-objective, denominator, gradient_weight_BT, clipped_BT, metrics)


def clip_metrics(
    log_ratio: Tensor, advantages: Tensor, mask_BT: Tensor, clipped_BT: Tensor, log_bounds: tuple[float, float]
) -> dict[str, Reduced]:
    """Shares of tokens and responses whose gradient the clip makes 0.

    A response's clipped tokens are all its tokens where it has one ratio. `ratio/outside_frac` is the other number
    that is often called a clip fraction: ratios outside the range, whatever the advantage's sign.
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
