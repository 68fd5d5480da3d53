"""Detached weights that correct for the gap between the sampling engine and the trainer.

o = the trainer's log-probability, m = the engine's, both before any update.
B = responses, T = token positions
"""

from typing import Literal

import torch
from torch import Tensor

from gspo_cli.algorithms.ops import saturate, sequence_log_ratio, token_log_ratio
from gspo_cli.types import Mean, Reduced

Kind = Literal["none", "tis", "icepop", "seq_mask"]
BOUNDS: dict[Kind, tuple[float, float]] = {"tis": (0.0, 2.0), "icepop": (0.5, 5.0), "seq_mask": (0.99, 1.01)}
"""Published defaults: truncation in verl and slime, icepop in NeMo-RL and verl, the sequence mask in SkyRL."""


def correction_weight(
    old_log_probs_BT: Tensor,
    sampler_log_probs_BT: Tensor,
    mask_BT: Tensor,
    unit: Literal["token", "sequence"],
    kind: Kind,
    bounds: tuple[float, float],
) -> Tensor:
    """The weight of each token [B, T], or of each response [B] for sequence algorithms and `seq_mask`.

    c = exp(o - m), for a sequence the geometric mean exp(mean_t(o - m)): a product would grow with the length.
    tis: min(c, high). icepop: c inside [low, high], else 0. seq_mask: 1 where the response's c is inside, else 0.
    """
    if unit == "token" and kind != "seq_mask":
        c = saturate(token_log_ratio(old_log_probs_BT, sampler_log_probs_BT, mask_BT)).exp()
    else:
        c = saturate(sequence_log_ratio(old_log_probs_BT, sampler_log_probs_BT, mask_BT)).exp()[:, 0]
    inside = (c >= bounds[0]) & (c <= bounds[1])
    if kind == "tis":
        return c.clamp(max=bounds[1])
    return torch.where(inside, c if kind == "icepop" else torch.ones_like(c), 0.0)


def correction_metrics(weights: Tensor, mask_BT: Tensor, kind: Kind, bounds: tuple[float, float]) -> dict[str, Reduced]:
    """The correction/* metrics."""
    weights_BT = (weights[:, None] if weights.dim() == 1 else weights).expand_as(mask_BT)
    tokens, responses = mask_BT.sum(), mask_BT.any(-1).sum()
    kept_BT = (weights_BT > 0) & mask_BT
    capped = (weights_BT >= bounds[1]) & mask_BT if kind == "tis" else torch.zeros_like(mask_BT)
    return {
        "correction/weight_mean": Mean(torch.where(mask_BT, weights_BT, 0.0).sum(), tokens),
        "correction/capped_frac": Mean(capped.sum(), tokens),
        "correction/kept_token_frac": Mean(kept_BT.sum(), tokens),
        "correction/kept_seq_frac": Mean(kept_BT.any(-1).sum(), responses),
    }
