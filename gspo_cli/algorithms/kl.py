"""The penalty for moving away from a frozen reference policy.

B = responses, T = token positions
"""

from typing import Literal

import torch
from torch import Tensor

from gspo_cli.algorithms.ops import saturate
from gspo_cli.types import Mean, Reduced

Estimator = Literal["k1", "k3"]


def kl_terms(log_probs_BT: Tensor, ref_log_probs_BT: Tensor, mask_BT: Tensor, estimator: Estimator) -> Tensor:
    """Per-token estimates of the KL divergence, 0 outside the mask: [B, T].   Schulman 2020; arXiv 2402.03300, Eq. 4

    k1 = l - ref, with the gradient (l - ref) grad l of KL(pi || ref): the plain gradient of k1 is 0 in expectation.
    k3 = exp(ref - l) - (ref - l) - 1, differentiated as it stands (DeepSeekMath): the gradient of KL(ref || pi).
    """
    gap_BT = torch.where(mask_BT, log_probs_BT, 0.0) - torch.where(mask_BT, ref_log_probs_BT, 0.0)
    if estimator == "k3":
        return saturate(-gap_BT).exp() + saturate(gap_BT) - 1
    return gap_BT.detach() * (1 + gap_BT - gap_BT.detach())


def kl_metrics(log_probs_BT: Tensor, ref_log_probs_BT: Tensor, mask_BT: Tensor) -> dict[str, Reduced]:
    """The kl/ref_* metrics: both estimates, whichever the loss uses."""
    tokens, log_probs_BT = mask_BT.sum(), log_probs_BT.detach()
    return {
        "kl/ref_k1": Mean(kl_terms(log_probs_BT, ref_log_probs_BT, mask_BT, "k1").sum(), tokens),
        "kl/ref_k3": Mean(kl_terms(log_probs_BT, ref_log_probs_BT, mask_BT, "k3").sum(), tokens),
    }
