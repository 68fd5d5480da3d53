"""What the ranks have each of their own, as one: metrics, and rows of numbers.

B = rows, T = token positions
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gspo_cli.ranks import Ranks, gather
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


def all_rows(matrices: list[Tensor], kind: torch.dtype, ranks: Ranks) -> tuple[Tensor, int]:
    """The rows of all ranks' matrices in one [B, T], in rank order and padded with 0, and where this rank's begin."""
    shape = [sum(len(matrix) for matrix in matrices), max((matrix.shape[1] for matrix in matrices), default=0)]
    shapes = ranks.everywhere(lambda: shape)
    width = max(columns for _, columns in shapes)
    padded = [F.pad(matrix, (0, width - matrix.shape[1])) for matrix in matrices]
    if ranks.size == 1:
        return torch.cat(padded), 0
    mine = b"".join(matrix.cpu().contiguous().numpy().tobytes() for matrix in padded)
    rows = torch.frombuffer(bytearray(b"".join(gather(mine))), dtype=kind).view(-1, width)
    return rows, sum(count for count, _ in shapes[: ranks.rank])
