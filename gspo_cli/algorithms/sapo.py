"""SAPO: a soft gate in place of the clip, sharper for negative advantages.

J = 1/N sum_i 1/|y_i| sum_t f(w_it) A_i,  f(w) = 4/tau sigmoid(tau (w - 1))                  arXiv 2511.20347, Eq. 5-6

B = responses, T = token positions
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.contract import LossInputs, LossOutput, Summary
from gspo_cli.types import Mean, Reduced

UNIT = "token"
REDUCTION = "seq-mean-token-mean"
token_terms = ops.sum_of_token_means
advantage = ops.group_advantage
denominator = ops.num_responses
SUMMARY = Summary(positive="soft: sech^2({tau_pos} (w - 1) / 2)", negative="soft: sech^2({tau_neg} (w - 1) / 2)")


@dataclass(frozen=True)
class Params:
    """The published setting (arXiv 2511.20347, §5); no KL, no replay."""

    tau_pos: float = 1.0
    tau_neg: float = 1.05

    def __post_init__(self) -> None:
        if min(self.tau_pos, self.tau_neg) <= 0:
            raise ValueError("tau_pos and tau_neg must be positive (they are the gate's sharpness)")


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                  arXiv 2511.20347, Eq. 5-8

    f'(w) = 4 p (1 - p) = sech^2(tau (w - 1) / 2) with p = sigmoid(tau (w - 1)); f(1) = 2 / tau, f'(1) = 1.
    Differs from the paper: nothing but the saturation of log-ratios beyond +-20. The gate is soft: f'(1.27) = 0.98, and
        for w -> 0 it never falls below 0.77.
    """
    mask_BT, advantages = inputs.mask_BT, ops.per_token(inputs.advantages)
    log_ratio_BT = ops.token_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, mask_BT)
    scale = ops.weighted_advantages(inputs)
    tau = torch.full_like(advantages, params.tau_neg).masked_fill(advantages > 0, params.tau_pos)
    ratio_BT = ops.saturate(log_ratio_BT).exp()
    gate_BT = torch.sigmoid(tau * (ratio_BT - 1))
    value_BT = torch.where(scale == 0, 0.0, 4 / tau * gate_BT * scale)
    slope_BT = (4 * gate_BT * (1 - gate_BT)).detach()
    flows_BT = log_ratio_BT.abs() <= ops.SATURATION
    weight_BT = torch.where(flows_BT, slope_BT * ratio_BT.detach() * scale, 0.0)
    return LossOutput(
        loss_numerator=-ops.sum_of_token_means(value_BT, mask_BT),
        denominator=denominator(mask_BT, params),
        gradient_weight_BT=ops.token_shares(weight_BT, mask_BT),
        clipped_BT=None,
        metrics=gate_metrics(slope_BT, ratio_BT.detach(), advantages.expand_as(mask_BT), mask_BT),
    )


def gate_metrics(slope_BT: Tensor, ratio_BT: Tensor, sign_BT: Tensor, mask_BT: Tensor) -> dict[str, Reduced]:
    """The gate/* metrics: what the soft gate leaves of each token's weight."""
    positive_BT, negative_BT = mask_BT & (sign_BT > 0), mask_BT & (sign_BT < 0)
    tokens = mask_BT.sum()
    return {
        "gate/mean": Mean(slope_BT[mask_BT].sum(), tokens),
        "gate/mean_pos": Mean(slope_BT[positive_BT].sum(), positive_BT.sum()),
        "gate/mean_neg": Mean(slope_BT[negative_BT].sum(), negative_BT.sum()),
        "gate/below_half_frac": Mean((slope_BT[mask_BT] < 0.5).sum(), tokens),
        "gate/weight_mean": Mean((slope_BT * ratio_BT)[mask_BT].sum(), tokens),
    }
