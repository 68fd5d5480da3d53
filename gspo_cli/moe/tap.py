"""Hooks on the routers: they read what is chosen, and make the model choose what was recorded.

L = MoE layers, R = rows of the routers (flattened responses x positions), K = experts per token, E = experts
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gspo_cli.moe.routers import Routing


class RouterTap:
    """What the routers did in the last forward pass, and what the next one must do.

    Everything is written by layer, so the recomputation of a checkpointed layer in backward changes nothing.
    """

    def __init__(self, routing: Routing) -> None:
        self.routing = routing
        self.outputs: list[tuple[Tensor, Tensor, Tensor]] = []
        self.used: list[Tensor] = []
        self.forget()

    def forget(self) -> None:
        """Drops the last pass."""
        nothing = torch.empty(0)
        self.outputs = [(nothing, nothing, nothing)] * len(self.routing.gates)
        self.used = [nothing] * len(self.routing.gates)

    @property
    def natural_LRK(self) -> Tensor:
        """The experts that the routers' own logits chose, int64; under replay too."""
        return torch.stack([index for _, _, index in self.outputs])

    @property
    def gates_LRK(self) -> Tensor:
        """The weights of these experts."""
        return torch.stack([gates for _, gates, _ in self.outputs])

    @property
    def logits_LRE(self) -> Tensor:
        """The routers' logits."""
        return torch.stack([logits for logits, _, _ in self.outputs])

    @property
    def used_LRK(self) -> Tensor:
        """What the experts were really called with; known within `replaying` only."""
        return torch.stack(self.used)

    @contextmanager
    def replaying(self, record_LRK: Tensor) -> Iterator[None]:
        """Within the context, forward and backward passes use the recorded experts; `routing.missing` stands where
        there is no record, and the natural choice is taken.

        Gate weights come from the current logits, so the routers keep their gradient. The record serves until the
        context ends: backward may recompute the pass.
        """
        handles = []
        for layer, (gate, experts) in enumerate(zip(self.routing.gates, self.routing.experts, strict=True)):
            handles.append(gate.register_forward_hook(self._replay(record_LRK[layer])))
            handles.append(experts.register_forward_pre_hook(self._note_used(layer), with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def read(self, layer: int) -> Callable[[nn.Module, Any, Any], None]:
        """The hook that reads one router."""

        def hook(_gate: nn.Module, _args: Any, output: Any) -> None:
            logits, gates, index = output
            self.outputs[layer] = (logits.detach(), gates.detach(), index.detach())

        return hook

    def _replay(self, record_RK: Tensor) -> Callable[[nn.Module, Any, Any], Any]:
        rule, missing = self.routing.rule, self.routing.missing
        assert rule is not None

        def hook(gate: nn.Module, _args: Any, output: Any) -> Any:
            logits, gates, natural_RK = output
            index_RK = torch.where(record_RK == missing, natural_RK, record_RK)
            return logits, rule(gate, logits, index_RK).to(gates.dtype), index_RK

        return hook

    def _note_used(self, layer: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_experts: nn.Module, args: Any, kwargs: Any) -> None:
            given = (*args, *kwargs.values())
            (index,) = (a for a in given if isinstance(a, Tensor) and not a.is_floating_point())
            self.used[layer] = index.detach()

        return hook


@contextmanager
def tapped(routing: Routing | None) -> Iterator[RouterTap | None]:
    """Within the context, each forward pass leaves what its routers did in the yielded tap; None for a dense model."""
    if routing is None:
        yield None
        return
    tap = RouterTap(routing)
    handles = [gate.register_forward_hook(tap.read(layer)) for layer, gate in enumerate(routing.gates)]
    try:
        yield tap
    finally:
        for handle in handles:
            handle.remove()
