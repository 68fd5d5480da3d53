"""Metrics of all ranks as one: what each of them counted on its rows, merged in rank order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gspo_cli.ranks import Ranks
from gspo_cli.training.accumulate import Accumulator
from gspo_cli.types import Extreme, LayerMeans, Loads, Mean, Reduced, RootMean, Spread, Total

KINDS: dict[str, Any] = {k.__name__: k for k in (Mean, RootMean, Extreme, Spread, LayerMeans, Total, Loads)}


def merged(metrics: Accumulator, ranks: Ranks) -> Accumulator:
    """The metrics over all ranks, on all ranks; a rank that has none of a name leaves it to the others."""
    if ranks.size == 1:
        return metrics
    together = Accumulator()
    for table in ranks.everywhere(lambda: {name: as_list(value) for name, value in metrics.values.items()}):
        together.add({name: KINDS[kind](*map(from_field, fields)) for name, (kind, fields) in table.items()})
    return together


def as_list(value: Reduced) -> tuple[str, list[Any]]:
    """A metric as JSON: its kind and its parts; a whole number that is no tensor stays one."""
    return type(value).__name__, [{"tensor": v.double().tolist()} if isinstance(v, Tensor) else v for v in value]


def from_field(field: Any) -> Tensor | int:
    """One part of what `as_list` gave."""
    return torch.tensor(field["tensor"], dtype=torch.float64) if isinstance(field, dict) else int(field)
