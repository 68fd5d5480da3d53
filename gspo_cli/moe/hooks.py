"""Hooks on the routers: they read what is chosen, and make the model use recorded choices.

L = MoE layers, R = rows of the routers (flattened responses x positions), K = experts per token, E = experts
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gspo_cli.moe.routers import Routing, in_order


class RouterTap:
    """What the routers did in the last forward pass.

    Everything is stored by layer, so the recomputation of a checkpointed layer in backward changes nothing.
    """

    def __init__(self, routing: Routing) -> None:
        self.routing = routing
        nothing = torch.empty(0)
        self.outputs = [(nothing, nothing, nothing)] * len(routing.gates)
        self.used = [nothing] * len(routing.gates)

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
        """The experts that were really called; known within `replaying` only."""
        return torch.stack(self.used)

    @contextmanager
    def replaying(self, record_LRK: Tensor) -> Iterator[None]:
        """Within the context, forward and backward use the recorded experts; where the record has `routing.missing`,
        the natural choice.

        Gate weights come from the current logits, so the routers keep their gradient. The record stays in use until the
        context ends, as backward may recompute the pass.
        """
        with ExitStack() as hooks:
            for layer, (gate, experts) in enumerate(zip(self.routing.gates, self.routing.experts, strict=True)):
                hooks.enter_context(gate.register_forward_hook(partial(self._replay, record_LRK[layer])))
                hooks.enter_context(
                    experts.register_forward_pre_hook(partial(self._note_used, layer), with_kwargs=True)
                )
            yield

    def read(self, layer: int, _gate: nn.Module, _args: Any, output: Any) -> None:
        """The hook that reads a layer's router."""
        logits, gates, index, *_ = in_order(output)
        self.outputs[layer] = (logits.detach(), gates.detach(), index.detach())

    def _replay(self, record_RK: Tensor, gate: nn.Module, _args: Any, output: Any) -> tuple[Tensor, ...]:
        logits, gates, natural_RK, *more = in_order(output)
        index_RK = torch.where(record_RK == self.routing.missing, natural_RK, record_RK)
        assert self.routing.rule is not None
        replayed = (logits, self.routing.rule(gate, logits, index_RK).to(gates.dtype), index_RK)
        return (*(replayed if output[0] is logits else replayed[::-1]), *more)

    def _note_used(self, layer: int, _experts: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = (a for a in (*args, *kwargs.values()) if isinstance(a, Tensor))
        (index,) = (tensor for tensor in tensors if not tensor.is_floating_point())
        self.used[layer] = index.detach()


@contextmanager
def tapped(routing: Routing | None) -> Iterator[RouterTap | None]:
    """Within the context, the tap holds what the routers did in the last forward pass; None for a dense model."""
    if routing is None:
        yield None
        return
    tap = RouterTap(routing)
    with ExitStack() as hooks:
        for layer, gate in enumerate(routing.gates):
            hooks.enter_context(gate.register_forward_hook(partial(tap.read, layer)))
        yield tap
