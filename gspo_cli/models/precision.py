"""Passes in bfloat16 with float32 master weights.

In a bfloat16 pass every weight is rounded once, and the model computes as one that was loaded in bfloat16. Gradients
flow back through the rounding to the weights themselves, where they add up in float32; so do the optimizer's steps,
which in bfloat16 would be lost: 1e-6 changes no weight of 1e-2 there. Log-probabilities and ratios are float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn


def compute_dtype(model: nn.Module) -> torch.dtype:
    """The precision of a model's passes; a sharded model has it from FSDP."""
    dtype: Any = getattr(model, "compute_dtype", None) or getattr(model, "rounded_to", None) or model.dtype
    assert isinstance(dtype, torch.dtype)
    return dtype


def compute_in(model: nn.Module, dtype: torch.dtype) -> None:
    """From now on the model's passes are in this precision, wherever they run within `computing`."""
    model.rounded_to = dtype  # type: ignore[assignment]


Rounded = dict[int, Tensor]
"""Rounded weights by the identity of the weights."""


@contextmanager
def computing(model: nn.Module, kept: Rounded | None = None) -> Iterator[None]:
    """Within the context, a model that computes in another precision than that of its weights has rounded weights.

    Contexts may be nested; the outermost counts. Tied weights stay tied. `kept`, for passes without gradients: holds
    the rounded weights from one context to the next, so that their addresses stay, which a CUDA graph is bound to.
    """
    dtype: Any = getattr(model, "rounded_to", None)
    exact: list[tuple[nn.Module, str, Tensor]] = [
        (module, name, weight)
        for module in (model.modules() if dtype is not None else ())
        for name, weight in module._parameters.items()
        if weight is not None and weight.is_floating_point() and weight.dtype != dtype
    ]
    rounded: Rounded = {}
    try:
        for module, name, weight in exact:
            key = id(weight)
            if key not in rounded:
                rounded[key] = kept[key].copy_(weight) if kept and key in kept else weight.to(dtype)
            module._parameters[name] = rounded[key]  # type: ignore[assignment]
        if kept is not None:
            kept.update(rounded)
        yield
    finally:
        for module, name, weight in exact:
            module._parameters[name] = weight  # type: ignore[assignment]


def recompute_contexts(model: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For a checkpointed pass and its repetition in backward, which runs when `computing` has ended."""
    return nullcontext(), computing(model)
