"""What a hard clip did: the clip/* and ratio/outside_frac metrics, by exact definition.

B = responses, T = token positions
"""

from __future__ import annotations

from math import log1p

import torch
from torch import Tensor

from gspo_cli.algorithms.contract import Clip
from gspo_cli.algorithms.reduction import per_token
from gspo_cli.types import Mean, Reduced


def clip_metrics(
    log_ratio: Tensor, advantages: Tensor, mask_BT: Tensor, clipped_BT: Tensor, clip: Clip
) -> dict[str, Reduced]:
    """Shares of tokens and responses whose gradient the clip makes 0.

    A response's clipped tokens are all its tokens where it has one ratio. `ratio/outside_frac` is the other number
    that is often called a clip fraction: ratios outside the range, whatever the advantage's sign.
    """
    sign_BT = per_token(advantages).expand_as(mask_BT)
    response_B = mask_BT.any(-1)
    outside_BT = ((log_ratio < log1p(-clip.low)) | (log_ratio > log1p(clip.high))) & mask_BT
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
