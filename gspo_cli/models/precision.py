"""Passes in bfloat16 or float16 with float32 master weights.

In such a pass every weight is rounded once, forwards and backwards, and the model computes as one that was loaded so.
Gradients flow back through the rounding to the weights themselves, where they add up in float32; so do the optimizer's
steps, which in bfloat16 would be lost: 1e-6 changes no weight of 1e-2 there. Log-probabilities and ratios are float32.
The head may compute in float32 whatever the layers do (arXiv 2506.13585 and 2510.13786).
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def compute_dtype(model: nn.Module) -> torch.dtype:
    """The precision of a model's passes; a sharded model has it from FSDP."""
    dtype: Any = getattr(model, "compute_dtype", None) or getattr(model, "rounded_to", None) or model.dtype
    assert isinstance(dtype, torch.dtype)
    return dtype


def compute_in(model: nn.Module, dtype: torch.dtype, head: Iterable[nn.Module] = ()) -> None:
    """From now on the model's passes are in this precision, wherever they run within `computing`; those modules of its
    `head` are in float32."""
    model.rounded_to = dtype  # type: ignore[assignment]
    model.float32_head = list(head)  # type: ignore[assignment]


@contextmanager
def exactly(model: nn.Module) -> Iterator[None]:
    """Within the context a model's passes are in float32; for one that is not sharded."""
    dtype, head = compute_dtype(model), getattr(model, "float32_head", ())
    compute_in(model, torch.float32)
    try:
        yield
    finally:
        compute_in(model, dtype, head)


Rounded = dict[tuple[int, torch.dtype], Tensor]
"""Rounded weights by the identity of the weights and the precision."""
Weights = list[tuple[nn.Module, str, Tensor]]
"""Weights with the module and the name that each is to have there."""


@contextmanager
def in_place(weights: Weights) -> Iterator[None]:
    """Within the context, modules have these weights in place of their own."""
    own = [(module, name, module._parameters[name]) for module, name, _ in weights]
    try:
        for module, name, weight in weights:
            module._parameters[name] = weight  # type: ignore[assignment]
        yield
    finally:
        for module, name, replaced in own:
            module._parameters[name] = replaced


@contextmanager
def computing(model: nn.Module, kept: Rounded | None = None) -> Iterator[None]:
    """Within the context, a model that computes in another precision than that of its weights has rounded weights.

    Contexts may be nested; the outermost counts. Tied weights stay tied, but for a head in float32. `kept`, for passes
    without gradients: holds the rounded weights from one context to the next, so that their addresses stay, which a
    CUDA graph is bound to. Layers that FSDP has sharded are left to it.
    """
    dtype: Any = getattr(model, "rounded_to", None)
    head = set(getattr(model, "float32_head", ()))
    exact: Weights = [
        (module, name, weight)
        for module in (model.modules() if dtype is not None else ())
        for name, weight in module._parameters.items()
        if weight is not None and weight.is_floating_point() and not isinstance(weight, DTensor)
    ]
    rounded: Rounded = {}
    replaced: Weights = []
    for module, name, weight in exact:
        key = id(weight), torch.float32 if module in head else dtype
        if weight.dtype == key[1]:
            continue
        if key not in rounded:
            rounded[key] = kept[key].copy_(weight) if kept and key in kept else _Cast.apply(weight, key[1])  # type: ignore[no-untyped-call]
        replaced.append((module, name, rounded[key]))
    if kept is not None:
        kept.update(rounded)
    with in_place(replaced):
        yield


def recompute_contexts(layer: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For a checkpointed layer and its repetition in backward: `computing` has ended by then, its weights are kept."""
    rounded = [
        (module, name, weight)
        for module in layer.modules()
        for name, weight in vars(module)["_parameters"].items()
        if weight is not None and not isinstance(weight, nn.Parameter)
    ]
    return nullcontext(), in_place(rounded)


class _Cast(torch.autograd.Function):
    """A weight in the precision of a pass. The gradients of its `uses` add up in float32: in half precision, a sum over
    many would lose the small ones."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.total = None
        return weight.to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        total, ctx.total = ctx.total, None
        if grad is not None:
            total = grad.float() if total is None else total.add_(grad)
        return total, None


class _Use(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.cast = weight.grad_fn
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        ctx.cast.total = grad.float() if ctx.cast.total is None else ctx.cast.total.add_(grad)


def summed(weight: Tensor) -> Tensor:
    """A weight for several `use`s within a pass."""
    exact = not weight.requires_grad or weight.dtype.itemsize >= 4
    return weight if exact or hasattr(weight.grad_fn, "total") else _Cast.apply(weight, weight.dtype)  # type: ignore


def use(weight: Tensor) -> Tensor:
    """A `summed` weight for one of its uses."""
    return _Use.apply(weight) if hasattr(weight.grad_fn, "total") else weight  # type: ignore
