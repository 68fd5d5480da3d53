"""Routing Replay: which experts a training pass must use, and the proof that it used them.

`r2` replays the trainer's own choices under the old policy (arXiv 2507.18071, §5.3; 2512.01374, §3.2), `r3` the
sampler's (2510.11370). A record holds one choice for every token but each response's last, which predicts nothing.

L = MoE layers, N = recorded tokens of a micro-batch, R = all its positions, K = experts per token
"""

from __future__ import annotations

import torch
from torch import Tensor

from gspo_cli.types import LayerMeans, Reduced, Total


def take(routes_LRK: Tensor, positions_N: Tensor, dtype: torch.dtype) -> Tensor:
    """The choices at the recorded tokens, in the small type that is stored: [L, N, K]."""
    return routes_LRK[:, positions_N].to(dtype)


def place(record_LNK: Tensor, positions_N: Tensor, num_positions: int, missing: int) -> Tensor:
    """A record laid out as a forward pass sees it, `missing` wherever there is none: int64 [L, R, K]."""
    layers, _, top_k = record_LNK.shape
    placed = torch.full((layers, num_positions, top_k), missing, dtype=torch.int64, device=record_LNK.device)
    placed[:, positions_N] = record_LNK.long()
    return placed


def violations(used_LRK: Tensor, record_LNK: Tensor, tokens_N: Tensor, missing: int) -> Total:
    """(layer, token) pairs where the experts were called with other experts than those recorded. Must be 0.

    `tokens_N` must come from the loss mask, not from the positions that `place` was given, so that a shifted or
    misaligned layout shows.
    """
    used_LNK = used_LRK[:, tokens_N]
    differs_LN = (used_LNK != record_LNK).any(-1) & (record_LNK[..., 0] != missing)
    return Total(differs_LN.sum())


def before_last(mask_BT: Tensor) -> Tensor:
    """True at prompt and response tokens but each row's last: bool [B, T]. The last loss token ends a row."""
    later_BT = mask_BT.long().flip(-1).cumsum(-1).flip(-1) - mask_BT.long()
    return later_BT > 0


def replay_metrics(natural_LNK: Tensor, record_LNK: Tensor, missing: int) -> dict[str, Reduced]:
    """How many pairs had no record, and of how many the routers' own choice is the recorded one."""
    known_LN = record_LNK[..., 0] != missing
    same_LN = (natural_LNK[..., :, None] == record_LNK[..., None, :]).any(-1).all(-1) & known_LN
    tokens = record_LNK.shape[1]
    return {
        "replay/fallback_frac": LayerMeans((~known_LN).sum(-1), tokens),
        "replay/natural_agree_frac": LayerMeans(same_LN.sum(-1), tokens),
    }
