"""The routers of a model: found by their structure, with the rule that turns logits into gate weights.

R = rows of the routers, E = experts, K = experts per token
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from gspo_cli.errors import GspoError

Gating = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""(router, logits [R, E], experts [R, K]) -> gate weights [R, K], with gradient to the logits."""
PROBE_TOKENS = 64


def softmax_share(gate: nn.Module, logits_RE: Tensor, index_RK: Tensor) -> Tensor:
    """The softmax over all experts, at the chosen ones (DeepSeek-V2, OLMoE)."""
    # over all: gathering from scores that top-k has zeroed would leave the router without gradient
    return torch.softmax(logits_RE.float(), -1).gather(-1, index_RK) * _scale(gate)


def softmax_normalised(gate: nn.Module, logits_RE: Tensor, index_RK: Tensor) -> Tensor:
    """The same, divided by its sum over the chosen experts (Qwen3-MoE, Mixtral)."""
    share_RK = torch.softmax(logits_RE.float(), -1).gather(-1, index_RK)
    return share_RK / share_RK.sum(-1, keepdim=True) * _scale(gate)


def sigmoid_normalised(gate: nn.Module, logits_RE: Tensor, index_RK: Tensor) -> Tensor:
    """Each expert's sigmoid, divided by the sum over the chosen ones (DeepSeek-V3, GLM-4-MoE)."""
    share_RK = logits_RE.float().sigmoid().gather(-1, index_RK)
    return share_RK / (share_RK.sum(-1, keepdim=True) + 1e-20) * _scale(gate)


def softmax_of_chosen(gate: nn.Module, logits_RE: Tensor, index_RK: Tensor) -> Tensor:
    """The softmax over the chosen experts' logits alone (gpt-oss)."""
    return torch.softmax(logits_RE.gather(-1, index_RK), -1) * _scale(gate)


GATINGS: tuple[Gating, ...] = (softmax_share, softmax_normalised, sigmoid_normalised, softmax_of_chosen)


@torch.no_grad()
def gating_of(gate: nn.Module) -> Gating:
    """The rule that reproduces a router's weights on random input, bit for bit. Errors: GspoError when none does."""
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
        "algo.replay = 'none', or add its rule to gspo_cli/moe/routers.py",
    )


@torch.no_grad()
def with_weights(gate: nn.Module) -> nn.Module:
    """Gives a router on the meta device random weights in memory: its rule does not depend on them."""
    gate.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    for weight in gate.parameters():
        weight.normal_(generator=generator)
    for buffer in gate.buffers():
        buffer.zero_()
    return gate


def _scale(gate: nn.Module) -> float:
    return float(getattr(gate, "routed_scaling_factor", 1.0))


EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names under which a model's configuration gives its number of experts."""


@dataclass(frozen=True)
class Routing:
    """The routers of a mixture-of-experts model, in layer order."""

    layers: tuple[int, ...]
    """The decoder layer (from 0) of each router: models may have dense layers in between."""
    gates: tuple[nn.Module, ...]
    """The routers: each returns (logits, gate weights, expert indices), one row a token."""
    experts: tuple[nn.Module, ...]
    """The modules that the routers' choices go to."""
    num_experts: int
    top_k: int
    rule: Gating | None = None
    """How logits become gate weights; set where Routing Replay needs it."""

    @property
    def missing(self) -> int:
        """The index that stands for "no record"."""
        return self.num_experts

    @property
    def dtype(self) -> torch.dtype:
        """Of stored choices: one byte a slot up to 255 experts, else two."""
        return torch.uint8 if self.num_experts < 256 else torch.int16


def find_routing(model: PreTrainedModel) -> Routing | None:
    """The model's routers; None for a dense model, or one whose routers are built in another way.

    A block counts as mixture-of-experts if one child has `top_k`, `num_experts` and a weight with a row for each
    expert, and another is named `experts` (Qwen3-MoE, Mixtral, OLMoE, DeepSeek, GLM, ...).
    """
    found = [
        (number, gate, block.experts)
        for number, layer in enumerate(getattr(model.base_model, "layers", ()))
        for block in layer.modules()
        if isinstance(getattr(block, "experts", None), nn.Module)
        for gate in block.children()
        if is_router(gate)
    ]
    if not found:
        return None
    layers, gates, experts = zip(*found, strict=True)
    return Routing(layers, gates, experts, int(gates[0].num_experts), int(gates[0].top_k))


def is_router(module: nn.Module) -> bool:
    """Whether a module chooses `top_k` of `num_experts`."""
    weight, count = getattr(module, "weight", None), getattr(module, "num_experts", None)
    return hasattr(module, "top_k") and isinstance(weight, torch.Tensor) and len(weight) == count


def is_mixture(config: PreTrainedConfig) -> bool:
    """Whether a configuration is that of a mixture-of-experts model."""
    return any((getattr(config, name, None) or 0) > 1 for name in EXPERT_COUNTS)


def needed_routing(model: PreTrainedModel, what: str) -> Routing:
    """The routers of a model that must have some; `what` = the setting that needs them.

    Errors: GspoError naming the model's class when it is dense or not supported.
    """
    routing = find_routing(model)
    if routing is None:
        name, config = type(model).__name__, cast(PreTrainedConfig, model.config)
        raise GspoError(
            f"{what} with {name}",
            f"the routers of {name} were not found: no block with `experts` and a router beside it"
            if is_mixture(config)
            else f"{name} is a dense model: it has no experts to route to",
            "remove it from the recipe, or use a model with routers such as Qwen3-MoE",
        )
    return routing


def replayable(model: PreTrainedModel, what: str) -> Routing:
    """The same with the rule for gate weights, which replay needs. Errors: as `needed_routing` and `gating_of`."""
    routing = needed_routing(model, what)
    return replace(routing, rule=gating_of(routing.gates[0]))
