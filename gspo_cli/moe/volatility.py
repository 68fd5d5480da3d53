"""How much the chosen experts change: pure functions over expert indices.

L = MoE layers, N = (response, position) pairs that predict a loss token, K = experts per token
"""

from __future__ import annotations

import torch
from torch import Tensor

from gspo_cli.types import Loads, Mean


def shared_slots(before_LNK: Tensor, after_LNK: Tensor) -> Tensor:
    """Experts that both sets have, of each (layer, token): int64 [L, N]. Order within a set means nothing."""
    return (before_LNK[..., :, None] == after_LNK[..., None, :]).any(-1).sum(-1)


def slot_churn(before_LNK: Tensor, after_LNK: Tensor) -> Mean:
    """Share of expert slots filled differently: (K - |E and E'|) summed over (layer, token), over K * tokens * layers.

    The paper's "activated experts that differ" (arXiv 2507.18071, §5.3), which does not give the formula.
    """
    return Mean((after_LNK.shape[-1] - shared_slots(before_LNK, after_LNK)).sum(), after_LNK.numel())


def loads(routes_LNK: Tensor, num_experts: int) -> Loads:
    """How often each expert was chosen, in routed slots: [L, E]."""
    flat_LM = routes_LNK.reshape(len(routes_LNK), -1)
    zero_LE = torch.zeros(len(routes_LNK), num_experts, device=flat_LM.device)
    return Loads(zero_LE.scatter_add_(1, flat_LM, torch.ones_like(flat_LM, dtype=torch.float32)))


def at_predicting_positions(routes_LBTK: Tensor, mask_BT: Tensor) -> Tensor:
    """The routes of the positions that predict loss tokens (one before each): [L, N, K]."""
    return routes_LBTK[:, :, :-1][:, mask_BT[:, 1:]]
