"""How routers turn logits into the weights of chosen experts: what Routing Replay must recompute.

R = tokens, E = experts, K = experts per token
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gspo_cli.errors import GspoError

Gating = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""(router, logits [R, E], experts [R, K]) -> gate weights [R, K], with gradient to the logits."""
PROBE_TOKENS = 64


def softmax_share(gate: nn.Module, logits_RE: Tensor, index_RK: Tensor) -> Tensor:
    """The softmax over all experts at the chosen ones (DeepSeek-V2, OLMoE)."""
    # over all of them: gathering from scores that top-k has zeroed would leave the router without gradient
    return torch.softmax(logits_RE.float(), -1).gather(-1, index_RK) * _scale(gate)


def softmax_normalised(gate: nn.Module, logits_RE: Tensor, index_RK: Tensor) -> Tensor:
    """The same divided by its sum over the chosen ones (Qwen3-MoE, Mixtral)."""
    share_RK = torch.softmax(logits_RE.float(), -1).gather(-1, index_RK)
    return share_RK / share_RK.sum(-1, keepdim=True) * _scale(gate)


def sigmoid_normalised(gate: nn.Module, logits_RE: Tensor, index_RK: Tensor) -> Tensor:
    """Each expert's own sigmoid, divided by the sum over the chosen ones (DeepSeek-V3, GLM-4-MoE)."""
    share_RK = logits_RE.float().sigmoid().gather(-1, index_RK)
    return share_RK / (share_RK.sum(-1, keepdim=True) + 1e-20) * _scale(gate)


def softmax_of_chosen(gate: nn.Module, logits_RE: Tensor, index_RK: Tensor) -> Tensor:
    """The softmax over the chosen experts' logits alone (gpt-oss)."""
    return torch.softmax(logits_RE.gather(-1, index_RK), -1) * _scale(gate)


GATINGS: tuple[Gating, ...] = (softmax_share, softmax_normalised, sigmoid_normalised, softmax_of_chosen)


@torch.no_grad()
def gating_of(gate: nn.Module) -> Gating:
    """The rule that gives this router's own weights, bit for bit, on random input.

    Errors: GspoError naming the router's class when none does.
    """
    weight = gate.weight
    assert isinstance(weight, Tensor)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(PROBE_TOKENS, weight.shape[1], generator=generator).to(weight.device, weight.dtype)
    logits_RE, weights_RK, index_RK = gate(hidden)
    for rule in GATINGS:
        if torch.equal(rule(gate, logits_RE, index_RK).to(weights_RK.dtype), weights_RK):
            return rule
    name = type(gate).__name__
    raise GspoError(
        f"Routing Replay does not know how {name} weighs its experts",
        f"none of the rules {', '.join(r.__name__ for r in GATINGS)} gives its weights",
        "algo.replay = 'none', or add its rule to gspo_cli/moe/gating.py",
    )


@torch.no_grad()
def with_weights(gate: nn.Module) -> nn.Module:
    """A router on the meta device, with random weights in memory: its rule does not depend on them."""
    gate.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    for weight in gate.parameters():
        weight.normal_(generator=generator)
    for buffer in gate.buffers():
        buffer.zero_()
    return gate


def _scale(gate: nn.Module) -> float:
    return float(getattr(gate, "routed_scaling_factor", 1.0))
