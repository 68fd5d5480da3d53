"""Top-k, top-p and min-p, in vLLM's order and with its edges, so that both engines draw from one distribution.

Evaluation only: training samples from the whole distribution (see `types.Sampling`).

R = rows, V = vocabulary
"""

from __future__ import annotations

import torch
from torch import Tensor

from gspo_cli.types import Sampling


def truncate(log_probs_RV: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities over the tokens that are kept, renormalised; -inf for the others.

    After the temperature: min-p drops tokens below min_p times the likeliest; top-k drops those below the k-th of
    the rest, keeping ties with it; top-p drops the unlikeliest whose mass together is at most 1 - top_p. The
    likeliest token always stays.
    Shapes: nats [R, V] -> [R, V].
    """
    if sampling.min_p > 0:
        lowest_R1 = log_probs_RV.amax(-1, keepdim=True).exp() * sampling.min_p
        log_probs_RV = _keep(log_probs_RV, log_probs_RV.exp() >= lowest_R1)
    if 0 < sampling.top_k < log_probs_RV.shape[-1]:
        kth_R1 = log_probs_RV.topk(sampling.top_k, dim=-1).values[:, -1:]
        log_probs_RV = _keep(log_probs_RV, log_probs_RV >= kth_R1)
    if sampling.top_p < 1:
        rising_RV, order_RV = log_probs_RV.sort(dim=-1, stable=True)
        kept_RV = rising_RV.double().exp().cumsum(-1) > 1 - sampling.top_p
        kept_RV[:, -1] = True
        log_probs_RV = _keep(log_probs_RV, torch.empty_like(kept_RV).scatter_(-1, order_RV, kept_RV))
    return log_probs_RV


def _keep(log_probs_RV: Tensor, kept_RV: Tensor) -> Tensor:
    return log_probs_RV.masked_fill(~kept_RV, -torch.inf).log_softmax(-1)
