"""VESPO: the sequence's own ratio, a product over its tokens, reshaped by a soft kernel instead of a clip.

J = 1/T sum_i phi(W_i) A_i sum_t l_it,  phi(W) = W^k exp(lambda (1 - W)) detached,  W_i = prod_t w_it
                                                                                                 arXiv 2602.10693, §3.4

B = responses, T = token positions
"""

from dataclasses import dataclass
from math import log

import torch

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.contract import LossInputs, LossOutput, Summary
from gspo_cli.types import Mean

UNIT = "sequence"
REDUCTION = "token-mean"
token_terms = ops.sum_of_tokens
advantage = ops.group_advantage
denominator = ops.num_tokens
PRESET = {"old_log_probs": "sampler"}
"""W is the ratio to the policy that sampled."""
LOWEST = log(1e-8)
"""Bound of log W from below, as in the authors' code and in TRL; the one from above is the saturation."""
SUMMARY = Summary(
    ratio="sequence W (product)",
    positive="soft: W^{k_pos} exp({lambda_pos} (1 - W))",
    negative="soft: W^{k_neg} exp({lambda_neg} (1 - W))",
)


@dataclass(frozen=True)
class Params:
    """The published kernel (§3.4; the defaults of the authors' code and of TRL)."""

    k_pos: float = 2.0
    lambda_pos: float = 3.0
    """For A >= 0."""
    k_neg: float = 3.0
    lambda_neg: float = 2.0
    """For A < 0."""

    def __post_init__(self) -> None:
        if min(self.k_pos, self.k_neg) < 0:
            raise ValueError("k_pos and k_neg must not be negative (rare responses would weigh without bound)")
        if min(self.lambda_pos, self.lambda_neg) <= 0:
            raise ValueError("lambda_pos and lambda_neg must be positive (they bound the weight of large ratios)")


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                    arXiv 2602.10693, §3.4

    phi(1) = 1, its largest value is at W = k / lambda.
    Differs from the paper: a sampler correction multiplies phi, while TRL multiplies W by it; the published setting
        needs none. The loss value depends on l and means nothing.
    """
    mask_BT, positive = inputs.mask_BT, ops.per_token(inputs.advantages) >= 0
    log_w_BT = ops.saturate(ops.token_log_ratio(inputs.log_probs_BT.detach(), inputs.old_log_probs_BT, mask_BT))
    log_ratio_B1 = log_w_BT.sum(-1, keepdim=True).clamp(LOWEST, ops.SATURATION)
    k, lam = (
        torch.full_like(inputs.advantages.view(positive.shape), neg).masked_fill(positive, pos)
        for pos, neg in ((params.k_pos, params.k_neg), (params.lambda_pos, params.lambda_neg))
    )
    phi = (lam + k * log_ratio_B1 - lam * log_ratio_B1.exp()).exp()
    metrics = {"gate/weight_mean": Mean(torch.where(mask_BT, phi, 0.0).sum(), mask_BT.sum())}
    weight = phi * ops.weighted_advantages(inputs)
    return ops.score_loss(weight, inputs, denominator(mask_BT, params), metrics={**metrics})
