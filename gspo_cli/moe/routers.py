"""Where a model's routers are: found by structure, so that any transformers model built that way is supported."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from gspo_cli.errors import GspoError
from gspo_cli.moe.gating import Gating, gating_of

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Under which of these names a model's configuration says that it has experts."""


@dataclass(frozen=True)
class Routing:
    """The routers of a mixture-of-experts model, in layer order."""

    layers: tuple[int, ...]
    """The decoder layer (from 0) of each router: models may have dense layers in between."""
    gates: tuple[nn.Module, ...]
    """The routers: each returns (logits, gate weights, expert indices), one row a token."""
    experts: tuple[nn.Module, ...]
    """What each router's choice is handed to."""
    num_experts: int
    top_k: int
    rule: Gating | None = None
    """How their logits become gate weights; known where Routing Replay needs it."""

    @property
    def missing(self) -> int:
        """Stands for "no record" where an expert's index would be."""
        return self.num_experts

    @property
    def dtype(self) -> torch.dtype:
        """What stored choices are kept in: one byte a slot for up to 255 experts, else two."""
        return torch.uint8 if self.num_experts < 256 else torch.int16


def find_routing(model: PreTrainedModel) -> Routing | None:
    """The model's routers; None for a dense model, and for one whose routers are not built as expected.

    A block counts as mixture-of-experts where one child has `top_k`, `num_experts` and a weight with a row for each
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
    """The routers of a model that must have some; `what` = what asked for them.

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
            "remove it from the recipe, or name a model with routers such as Qwen3-MoE",
        )
    return routing


def replayable(model: PreTrainedModel, what: str) -> Routing:
    """The same, with the rule by which they weigh experts, so that their choices can be replayed.

    Errors: as `needed_routing`, and for a router whose rule is not known.
    """
    routing = needed_routing(model, what)
    return replace(routing, rule=gating_of(routing.gates[0]))
