"""Detached weights that correct for the gap between the sampling engine and the trainer.

o = the trainer's log-probability, m = the engine's, both before any update.
B = responses, T = token positions
"""

from typing import Literal

import torch
from torch import Tensor

from gspo_cli.algorithms.ops import per_token, saturate, sequence_log_ratio, token_log_ratio
from gspo_cli.types import Mean, Reduced

Kind = Literal["none", "tis", "icepop", "seq_mask", "seq_mask_tis", "seq_tis", "opsm"]
BOUNDS: dict[Kind, tuple[float, float]] = {
    "tis": (0.0, 2.0),
    "icepop": (0.5, 5.0),
    "seq_mask": (0.99, 1.01),
    "seq_mask_tis": (0.999, 1.002),
    "seq_tis": (0.0, 2.0),
    "opsm": (0.0, 0.5),
}
"""Published defaults: truncation in verl and slime, icepop in NeMo-RL and verl, the sequence mask in SkyRL, the one
that keeps token weights in NeMo-RL; for opsm what TRL advises, in nats."""
ONE_BOUND = ("tis", "seq_tis", "opsm")
"""Kinds without a lower bound."""
MASKS = ("none", "opsm")
"""Kinds that weigh nothing, so that the ratio may hold the mismatch as well."""


def correction_weight(
    old_log_probs_BT: Tensor,
    sampler_log_probs_BT: Tensor,
    mask_BT: Tensor,
    unit: Literal["token", "sequence"],
    kind: Kind,
    bounds: tuple[float, float],
) -> Tensor:
    """The weight of each token [B, T], or of each response [B] for sequence algorithms, `seq_mask` and `seq_tis`.

    c = exp(o - m), for a sequence the geometric mean exp(mean_t(o - m)): a product would grow with the length.
    tis: min(c, high). icepop: c inside [low, high], else 0. seq_mask: 1 where the response's c is inside, else 0.
    seq_mask_tis: each token's c where the response's is inside, else 0. seq_tis: the product after all, min(prod c,
    high), the ratio of the whole response as in verl and TRL.
    """
    gap_BT = token_log_ratio(old_log_probs_BT, sampler_log_probs_BT, mask_BT)
    if kind == "seq_tis":
        return saturate(gap_BT.sum(-1)).exp().clamp(max=bounds[1])
    whole_B1 = saturate(sequence_log_ratio(old_log_probs_BT, sampler_log_probs_BT, mask_BT)).exp()
    by_token = unit == "token" and kind != "seq_mask"
    c = saturate(gap_BT).exp() if by_token else whole_B1[:, 0]
    if kind == "tis":
        return c.clamp(max=bounds[1])
    judged = whole_B1 if by_token and kind == "seq_mask_tis" else c
    inside = (judged >= bounds[0]) & (judged <= bounds[1])
    return torch.where(inside, torch.ones_like(c) if kind == "seq_mask" else c, 0.0)


def off_policy_mask(
    log_probs_BT: Tensor, sampler_log_probs_BT: Tensor, advantages: Tensor, mask_BT: Tensor, delta: float
) -> Tensor:
    """OPSM: 0 where A < 0 and mean_t(m - l) > delta, else 1; in the advantages' shape.                 arXiv 2512.02556

    A response that the policy has long left is not pushed further away. l is the policy's now, so the mask grows with
    every update of a rollout batch. The paper names no delta.
    """
    gap_B1 = sequence_log_ratio(sampler_log_probs_BT, log_probs_BT.detach(), mask_BT)
    keep = ~((per_token(advantages) < 0) & (gap_B1 > delta))
    return keep.to(log_probs_BT.dtype).view(advantages.shape)


def correction_metrics(weights: Tensor, mask_BT: Tensor, kind: Kind, bounds: tuple[float, float]) -> dict[str, Reduced]:
    """The correction/* metrics."""
    weights_BT = (weights[:, None] if weights.dim() == 1 else weights).expand_as(mask_BT)
    tokens, responses = mask_BT.sum(), mask_BT.any(-1).sum()
    kept_BT = (weights_BT > 0) & mask_BT
    capped = (weights_BT >= bounds[1]) & mask_BT if kind in ("tis", "seq_tis") else torch.zeros_like(mask_BT)
    return {
        "correction/weight_mean": Mean(torch.where(mask_BT, weights_BT, 0.0).sum(), tokens),
        "correction/capped_frac": Mean(capped.sum(), tokens),
        "correction/kept_token_frac": Mean(kept_BT.sum(), tokens),
        "correction/kept_seq_frac": Mean(kept_BT.any(-1).sum(), responses),
    }
