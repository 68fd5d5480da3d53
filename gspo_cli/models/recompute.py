"""Layers that keep their input alone and are computed once more in the backward pass: `train.recompute`."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel


def enable_recompute(model: PreTrainedModel) -> None:
    """Switches it on for every decoder layer; with expert choices that are replayed, these are replayed twice.

    transformers heeds it in training mode alone, where dropout would act as well: it is set to 0, since ratios between
    policies must not hold its noise.
    """
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0  # type: ignore[assignment]
    model.train()
