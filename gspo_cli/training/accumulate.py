"""Metrics over micro-batches and mini-batches: merged as they are, divided once, read from the device once."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from gspo_cli.types import Extreme, LayerMeans, Loads, Mean, Reduced, RootMean, Spread, StepMetrics, Total


class Accumulator:
    """Merges metrics by name."""

    def __init__(self) -> None:
        self.values: dict[str, Reduced] = {}

    def add(self, metrics: dict[str, Reduced]) -> None:
        """Merges each metric with what is there under its name."""
        for name, value in metrics.items():
            known = self.values.get(name)
            self.values[name] = value if known is None else known.merge(value)  # type: ignore[arg-type]

    def result(self, layers: tuple[int, ...] = ()) -> StepMetrics:
        """The values with their denominators, after one transfer from the device.

        `layers` = the numbers of the MoE layers, where each layer's own value is wanted as well
        (`moe/slot_churn_step/layer_02`). A mean over nothing is None: it has no meaning.
        """
        values = dict(pair for name, value in self.values.items() for pair in _plain(name, value, layers))
        flat = [part for value in values.values() for part in value]
        tensors = [t.detach().double().reshape(()) for t in flat if isinstance(t, Tensor)]
        numbers = iter(torch.stack(tensors).tolist() if tensors else [])
        out = StepMetrics()
        for name, value in values.items():
            parts = [next(numbers) if isinstance(p, Tensor) else float(p) for p in value]
            out.values[name], count = _finish(value, parts)
            if count is not None:
                out.counts[name] = count
        return out


def _plain(name: str, value: Reduced, layers: tuple[int, ...]) -> Iterator[tuple[str, Reduced]]:
    """A metric with what it stands for: its total, and each layer's own."""
    if isinstance(value, Loads):
        value = value.violation()
        yield f"{name}_worst", Extreme(value.numerator_L.max(), 1)
    if not isinstance(value, LayerMeans):
        yield name, value
        return
    yield name, value.total()
    for number, mean in zip(layers, value.layers(), strict=False):
        yield f"{name}/layer_{number:02d}", mean


def _finish(kind: Reduced, parts: list[float]) -> tuple[float | None, int | None]:
    if isinstance(kind, Mean | RootMean):
        numerator, denominator = parts
        if not denominator:
            return None, 0
        mean = numerator / denominator
        return (mean if isinstance(kind, Mean) else math.sqrt(mean)), int(denominator)
    if isinstance(kind, Spread):
        count, _, squares = parts
        return (math.sqrt(squares / (count - 1)) if count > 1 else None), int(count)
    assert isinstance(kind, Extreme | Total)
    return parts[0], None
