"""ASPO: for positive advantages the importance ratio is turned over, so that rare tokens gain more, not less.

J = 1/T sum_i sum_t M_it sg[min(x_it, cap)] A_i l_it,  x_it = 1 / w_it for A_i > 0, else w_it;  M_it = 0 where GRPO
would clip w_it                                                                                         arXiv 2510.06062

B = responses, T = token positions
"""

from dataclasses import dataclass
from math import log

import torch

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.clip import Clip, clipped_surrogate
from gspo_cli.algorithms.contract import LossInputs, LossOutput, Summary
from gspo_cli.types import Mean

UNIT = "token"
REDUCTION = "token-mean"
token_terms = ops.sum_of_tokens
advantage = ops.group_advantage
denominator = ops.num_tokens
SUMMARY = Summary(ratio="token w; weight 1 / w for A > 0, <= {cap}")


@dataclass(frozen=True)
class Params:
    """Clip and cap of the authors' scripts (wizard-III/Archer2.0), which widen the clip to 0.4 for some tokens."""

    clip: Clip = Clip(low=0.2, high=0.2)
    cap: float = 3.0
    """Largest weight; a token beyond it keeps its gradient (soft dual clip)."""

    def __post_init__(self) -> None:
        ops.check_cap(self.cap)


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                       arXiv 2510.06062; its code, archer

    Differs from the paper: one clip range, not a wider one for tokens of high entropy; the value is sg[weight] l
        throughout, which has the paper's gradient. The loss value depends on l and means nothing.
    """
    log_probs_BT, mask_BT, positive = inputs.log_probs_BT.detach(), inputs.mask_BT, ops.per_token(inputs.advantages) > 0
    log_ratio_BT = ops.token_log_ratio(log_probs_BT, inputs.old_log_probs_BT, mask_BT)
    surrogate = clipped_surrogate(log_ratio_BT, inputs, params.clip)
    log_weight_BT = torch.where(positive, -log_ratio_BT, log_ratio_BT)
    weight_BT = ops.capped_weight(log_weight_BT, params.cap) * ops.weighted_advantages(inputs)
    weight_BT = torch.where(surrogate.clipped_BT, 0.0, weight_BT)
    capped_BT = (log_weight_BT > log(params.cap)) & mask_BT
    metrics = surrogate.metrics | {"weight/capped_frac": Mean(capped_BT.sum(), mask_BT.sum())}
    return ops.score_loss(weight_BT, inputs, denominator(mask_BT, params), surrogate.clipped_BT, metrics)
