"""How much the chosen experts change: pure functions over expert indices, whose order within a set means nothing.

L = MoE layers, N = tokens, K = experts per token, E = experts
"""

import torch
from torch import Tensor

from gspo_cli.types import LayerMeans, Loads, Mean


def shared_slots(before_LNK: Tensor, after_LNK: Tensor) -> Tensor:
    """The number of experts in both sets of each (layer, token): int64 [L, N]."""
    return _same_LNKK(before_LNK, after_LNK).any(-1).sum(-1)


def slot_churn(before_LNK: Tensor, after_LNK: Tensor) -> LayerMeans:
    """Share of expert slots filled differently, per layer: sum over tokens of (K - |E and E'|), over K * tokens.

    The paper's "activated experts that differ" (arXiv 2507.18071, §5.3), which does not give the formula.
    """
    changed_L = (after_LNK.shape[-1] - shared_slots(before_LNK, after_LNK)).sum(-1)
    return LayerMeans(changed_L, after_LNK[0].numel())


def router_differs(before_LNK: Tensor, after_LNK: Tensor) -> LayerMeans:
    """Share of tokens whose set differs at all, per layer."""
    return LayerMeans((shared_slots(before_LNK, after_LNK) < after_LNK.shape[-1]).sum(-1), after_LNK.shape[1])


def token_any_layer(before_LNK: Tensor, after_LNK: Tensor) -> Mean:
    """Share of tokens whose set differs in at least one layer."""
    differs_N = (shared_slots(before_LNK, after_LNK) < after_LNK.shape[-1]).any(0)
    return Mean(differs_N.sum(), len(differs_N))


def weighted_churn(before_LNK: Tensor, gates_before_LNK: Tensor, after_LNK: Tensor, gates_LNK: Tensor) -> LayerMeans:
    """Share of gate mass that moved, per layer: 1 - sum over shared experts of min(g, g'), gates divided by their sum.

    A slot that changes near the decision boundary has little weight and counts little.
    """
    g, h = (gates.float() / gates.float().sum(-1, keepdim=True) for gates in (gates_before_LNK, gates_LNK))
    kept_LNKK = torch.where(_same_LNKK(before_LNK, after_LNK), torch.minimum(g[..., :, None], h[..., None, :]), 0.0)
    return LayerMeans((1 - kept_LNKK.sum((-1, -2))).clamp(min=0).double().sum(-1), after_LNK.shape[1])


def loads(routes_LNK: Tensor, num_experts: int) -> Loads:
    """How often each expert was chosen: slots [L, E]."""
    flat_LM = routes_LNK.reshape(len(routes_LNK), -1).long()
    zero_LE = torch.zeros(len(routes_LNK), num_experts, device=flat_LM.device)
    return Loads(zero_LE.scatter_add_(1, flat_LM, torch.ones_like(flat_LM, dtype=torch.float32)))


def router_entropy(logits_LNE: Tensor) -> LayerMeans:
    """Mean entropy in nats of the softmax of the routers' logits, per layer."""
    log_share = torch.log_softmax(logits_LNE.float(), -1)
    return LayerMeans(-(log_share.exp() * log_share).sum(-1).double().sum(-1), logits_LNE.shape[1])


def _same_LNKK(before_LNK: Tensor, after_LNK: Tensor) -> Tensor:
    return before_LNK[..., :, None] == after_LNK[..., None, :]
