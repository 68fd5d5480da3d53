"""Metrics of one micro-batch: importance ratios, KL to the old policy, entropy and gradient weights.

B = responses, T = token positions, N = loss tokens
"""

import torch
from torch import Tensor

from gspo_cli.algorithms.contract import LossOutput
from gspo_cli.algorithms.ops import SATURATION, saturate, sequence_log_ratio, token_log_ratio
from gspo_cli.types import Extreme, Kish, Mean, Reduced, Spread


def ratio_metrics(
    log_probs_BT: Tensor, old_log_probs_BT: Tensor, entropy_BT: Tensor, mask_BT: Tensor, output: LossOutput,
    loss_M: Tensor | None = None,
) -> dict[str, Reduced]:  # fmt: skip
    """The ratio/*, kl/old_*, entropy/* and weight/* metrics of one micro-batch.

    `loss_M`: where the flattened mask is True, if the caller knows (to find out, the host waits for a GPU).
    """
    log_probs_BT, entropy_BT = log_probs_BT.detach(), entropy_BT.detach()
    log_w_BT = token_log_ratio(log_probs_BT, old_log_probs_BT, mask_BT)
    log_w_N, tokens = log_w_BT[mask_BT] if loss_M is None else log_w_BT.flatten()[loss_M], mask_BT.sum()
    has_tokens_B = mask_BT.any(-1)
    responses = has_tokens_B.sum()
    log_s_B = sequence_log_ratio(log_probs_BT, old_log_probs_BT, mask_BT)[:, 0]
    low_B, high_B = (log_s_B.masked_fill(~has_tokens_B, limit) for limit in (torch.inf, -torch.inf))
    w_N = saturate(log_w_N).exp()
    variance_B = within_variance(log_w_BT, mask_BT)
    return {
        "entropy/mean": Mean(torch.where(mask_BT, entropy_BT, 0.0).sum(), tokens),
        "ratio/token_log_mean": Mean(log_w_N.sum(), tokens),
        "ratio/token_log_std": spread(log_w_N),
        "ratio/token_log_absmax": Extreme(log_w_N.abs().amax(), 1),
        "ratio/seq_log_mean": Mean(torch.where(has_tokens_B, log_s_B, 0.0).sum(), responses),
        "ratio/seq_log_std": spread(log_s_B, has_tokens_B),
        "ratio/seq_min": Extreme(saturate(low_B.amin()).exp(), -1),
        "ratio/seq_max": Extreme(saturate(high_B.amax()).exp(), 1),
        "ratio/saturated_frac": Mean((log_w_N.abs() > SATURATION).sum(), tokens),
        "ratio/within_seq_log_var": Mean(torch.where(has_tokens_B, variance_B, 0.0).sum(), responses),
        "weight/within_seq_cv": weight_variation(output.gradient_weight_BT, mask_BT),
        "kl/old_k1": Mean(-log_w_N.sum(), tokens),
        "kl/old_k3": Mean((w_N - 1 - log_w_N).sum(), tokens),
    }


def spread(values: Tensor, mask: Tensor | None = None) -> Spread:
    """Count, mean and squared deviations of the values, or of those in the mask, two-pass in float64."""
    values, mask = values.double(), torch.ones_like(values, dtype=torch.bool) if mask is None else mask
    count = mask.sum().double()
    mean = torch.where(mask, values, 0.0).sum() / count.clamp(min=1)
    return Spread(count, mean, torch.where(mask, (values - mean).square(), 0.0).sum())


def within_variance(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Variance over the loss tokens of each response (dividing by their number): [B]."""
    length_B1 = mask_BT.sum(-1, keepdim=True).clamp(min=1)
    mean_B1 = torch.where(mask_BT, values_BT, 0.0).sum(-1, keepdim=True) / length_B1
    squares_BT = torch.where(mask_BT, (values_BT - mean_B1).square(), 0.0)
    return squares_BT.sum(-1) / length_B1[:, 0]


def weight_variation(weight_BT: Tensor, mask_BT: Tensor) -> Mean:
    """Standard deviation over |mean| of a response's gradient weights, averaged over responses with a gradient.

    0 where all tokens weigh the same, as in GSPO.
    """
    length_B = mask_BT.sum(-1).clamp(min=1)
    mean_B = torch.where(mask_BT, weight_BT, 0.0).sum(-1) / length_B
    has_gradient_B = mean_B != 0
    cv_B = within_variance(weight_BT, mask_BT).sqrt() / mean_B.abs().clamp(min=1e-30)
    return Mean(torch.where(has_gradient_B, cv_B, 0.0).sum(), has_gradient_B.sum())


def weight_metrics(weight_BT: Tensor, on_policy_BT: Tensor) -> dict[str, Reduced]:
    """How evenly the tokens with an advantage still count.

    x = a token's gradient weight over the one that the same algorithm gives it at ratio 1: the ratio, times whatever
    gate or clip acts on it.
    """
    active_BT = on_policy_BT != 0
    x_BT = torch.where(active_BT, weight_BT / torch.where(active_BT, on_policy_BT, 1.0), 0.0).double()
    return {"weight/effective_frac": Kish(x_BT.sum(), x_BT.square().sum(), active_BT.sum())}
