"""CISPO: the importance weight is capped and detached; no token loses its gradient.

J = 1/T sum_i sum_t sg[min(w_it, cap)] A_i l_it                                             arXiv 2506.13585, Eq. 4-5

B = responses, T = token positions
"""

from dataclasses import dataclass
from math import log

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.contract import LossInputs, LossOutput, Summary
from gspo_cli.types import Mean, Reduced

UNIT = "token"
REDUCTION = "token-mean"
token_terms = ops.sum_of_tokens
advantage = ops.group_advantage
denominator = ops.num_tokens
SUMMARY = Summary(ratio="token w; weight <= {cap}")


@dataclass(frozen=True)
class Params:
    """The cap of ScaleRL (arXiv 2510.13786); the CISPO paper publishes none, and no lower side."""

    cap: float = 5.0
    """Largest weight, absolute (not 1 + cap)."""

    def __post_init__(self) -> None:
        ops.check_cap(self.cap)


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                    arXiv 2506.13585, Eq. 4

    Differs from the paper: no KL term. The loss value depends on l and means nothing.
    """
    mask_BT = inputs.mask_BT
    log_ratio_BT = ops.token_log_ratio(inputs.log_probs_BT.detach(), inputs.old_log_probs_BT, mask_BT)
    weight_BT = ops.capped_weight(log_ratio_BT, params.cap) * ops.weighted_advantages(inputs)
    capped_BT = (log_ratio_BT > log(params.cap)) & mask_BT
    share = Mean(capped_BT.sum(), mask_BT.sum())
    metrics: dict[str, Reduced] = {"weight/capped_frac": share, "ratio/outside_frac": share}
    return ops.score_loss(weight_BT, inputs, denominator(mask_BT, params), metrics=metrics)
