"""Which experts a mixture-of-experts model chose: capture by hooks on its routers.

B = responses, T = token positions, L = MoE layers, K = experts per token
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


def routers(model: PreTrainedModel) -> list[nn.Module]:
    """The router of each MoE layer, in layer order; empty for a dense model.

    A router is found by its place and its attributes (`layer.mlp.gate` with `top_k` and `num_experts`), as in the
    Qwen3-MoE family.
    """
    layers = getattr(model.base_model, "layers", [])
    gates = [getattr(getattr(layer, "mlp", None), "gate", None) for layer in layers]
    return [g for g in gates if isinstance(g, nn.Module) and hasattr(g, "top_k") and hasattr(g, "num_experts")]


class Routes:
    """The expert indices of the last forward pass."""

    def __init__(self, num_layers: int) -> None:
        self.by_layer: list[Tensor | None] = [None] * num_layers

    def stacked(self, batch: int) -> Tensor:
        """[L, B, T, K], int64, in the order of `input_ids`."""
        return torch.stack([r.view(batch, -1, r.shape[-1]) for r in self.by_layer if r is not None])


@contextmanager
def captured_routes(model: PreTrainedModel) -> Iterator[Routes | None]:
    """Within the context, each forward pass leaves its routes in the yielded object; None for a dense model."""
    gates = routers(model)
    if not gates:
        yield None
        return
    routes = Routes(len(gates))

    def keep(layer: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_gate: nn.Module, _args: Any, output: Any) -> None:
            routes.by_layer[layer] = output[
                2
            ].detach()  # written by layer, so recomputation in backward changes nothing

        return hook

    handles = [gate.register_forward_hook(keep(layer)) for layer, gate in enumerate(gates)]
    try:
        yield routes
    finally:
        for handle in handles:
            handle.remove()
