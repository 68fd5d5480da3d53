"""What every algorithm's update is measured by: importance ratios, KL to the old policy, entropy, weights.

B = responses, T = token positions
"""

from __future__ import annotations

import torch
from torch import Tensor

from gspo_cli.algorithms.contract import LossOutput
from gspo_cli.algorithms.ratio import SATURATION, saturate, sequence_log_ratio, token_log_ratio
from gspo_cli.types import Extreme, Mean, Reduced, Spread


@torch.no_grad()
def ratio_metrics(
    log_probs_BT: Tensor, old_log_probs_BT: Tensor, entropy_BT: Tensor, mask_BT: Tensor, output: LossOutput
) -> dict[str, Reduced]:
    """The ratio/*, kl/old_*, entropy/* and weight/* metrics of one micro-batch."""
    log_w_BT = token_log_ratio(log_probs_BT, old_log_probs_BT, mask_BT)
    log_w_N, tokens = log_w_BT[mask_BT], mask_BT.sum()
    has_tokens_B = mask_BT.any(-1)
    log_s_B = sequence_log_ratio(log_probs_BT, old_log_probs_BT, mask_BT)[:, 0][has_tokens_B]
    w_N = saturate(log_w_N).exp()
    variance_B = within_variance(log_w_BT, mask_BT)
    return {
        "entropy/mean": Mean(torch.where(mask_BT, entropy_BT, 0.0).sum(), tokens),
        "ratio/token_log_mean": Mean(log_w_N.sum(), tokens),
        "ratio/token_log_std": spread(log_w_N),
        "ratio/token_log_absmax": Extreme(log_w_N.abs().amax(), 1),
        "ratio/seq_log_mean": Mean(log_s_B.sum(), len(log_s_B)),
        "ratio/seq_log_std": spread(log_s_B),
        "ratio/seq_min": Extreme(saturate(log_s_B.amin()).exp(), -1),
        "ratio/seq_max": Extreme(saturate(log_s_B.amax()).exp(), 1),
        "ratio/saturated_frac": Mean((log_w_N.abs() > SATURATION).sum(), tokens),
        "ratio/within_seq_log_var": Mean(variance_B[has_tokens_B].sum(), has_tokens_B.sum()),
        "weight/within_seq_cv": weight_variation(output.gradient_weight_BT, mask_BT),
        "kl/old_k1": Mean(-log_w_N.sum(), tokens),
        "kl/old_k3": Mean((w_N - 1 - log_w_N).sum(), tokens),
    }


def spread(values: Tensor) -> Spread:
    """Count, mean and squared deviations, two-pass in float64."""
    values = values.double()
    mean = values.sum() / max(values.numel(), 1)
    return Spread(torch.full_like(mean, values.numel()), mean, (values - mean).square().sum())


def within_variance(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Variance over the loss tokens of each response (dividing by their number): [B]."""
    length_B1 = mask_BT.sum(-1, keepdim=True).clamp(min=1)
    mean_B1 = torch.where(mask_BT, values_BT, 0.0).sum(-1, keepdim=True) / length_B1
    squares_BT = torch.where(mask_BT, (values_BT - mean_B1).square(), 0.0)
    return squares_BT.sum(-1) / length_B1[:, 0]


def weight_variation(weight_BT: Tensor, mask_BT: Tensor) -> Mean:
    """Standard deviation over |mean| of a response's gradient weights, mean over responses that have a gradient.

    0 where all tokens weigh the same, as in GSPO.
    """
    length_B = mask_BT.sum(-1).clamp(min=1)
    mean_B = torch.where(mask_BT, weight_BT, 0.0).sum(-1) / length_B
    has_gradient_B = mean_B != 0
    cv_B = within_variance(weight_BT, mask_BT).sqrt() / mean_B.abs().clamp(min=1e-30)
    return Mean(torch.where(has_gradient_B, cv_B, 0.0).sum(), has_gradient_B.sum())
