"""Metrics over micro-batches, mini-batches and ranks: merged exactly, divided and read once. B = rows, T = columns."""

import math
from collections.abc import Iterator
from itertools import islice
from operator import add
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gspo_cli.distributed import Ranks, all_gather_bytes
from gspo_cli.stats.pareto import pareto_k_of_largest
from gspo_cli.types import Extreme, Kish, LayerMeans, Loads, Mean, Reduced, RootMean, Spread, StepMetrics, Tail, Total


class Accumulator:
    """Merges metrics by name."""

    def __init__(self) -> None:
        self.values: dict[str, Reduced] = {}

    def add(self, metrics: dict[str, Reduced]) -> None:
        """Merges each metric into the one of its name."""
        for name, value in metrics.items():
            known = self.values.get(name)
            self.values[name] = value if known is None else _merged(known, value)

    def result(self, layers: tuple[int, ...] = ()) -> StepMetrics:
        """The values with their denominators, after one transfer from each device.

        `layers` = numbers of the MoE layers, if each layer's own value is wanted as well
        (`moe/slot_churn_step/layer_02`). A mean over nothing is None: it has no meaning.
        """
        values = dict(pair for name, value in self.values.items() for pair in _by_layer(name, value, layers))
        numbers = iter(_read([tensor for value in values.values() for tensor in _tensors(value)]))
        out = StepMetrics()
        for name, value in values.items():
            if isinstance(value, Tail):
                largest = [x for _ in value.largest for x in next(numbers)]
                num = int(next(numbers)[0]) if isinstance(value.num, Tensor) else value.num
                out.values[name], out.counts[name] = pareto_k_of_largest(np.array(largest), num), num
                continue
            read = [next(numbers)[0] if isinstance(part, Tensor) else float(part) for part in value]
            out.values[name], count = _divide(value, read)
            if count is not None:
                out.counts[name] = count
        return out


def _merged(one: Reduced, other: Reduced) -> Reduced:
    """Two values of one metric as the value over both: of most kinds, the sum of each part."""
    if isinstance(one, Extreme | Spread):
        return one.merge(other)  # type: ignore[arg-type]
    return type(one)(*map(add, one, other))


def _tensors(value: Reduced) -> list[Tensor]:
    """What must be read from the device for a metric."""
    parts = (*value.largest, value.num) if isinstance(value, Tail) else value
    return [part for part in parts if isinstance(part, Tensor)]


@torch.no_grad()
def _read(tensors: list[Tensor]) -> list[list[float]]:
    """The values of tensors that may be on several devices: one transfer from each."""
    by_device: dict[torch.device, dict[torch.dtype, list[int]]] = {}
    for i, tensor in enumerate(tensors):
        by_device.setdefault(tensor.device, {}).setdefault(tensor.dtype, []).append(i)
    values: list[list[float]] = [[]] * len(tensors)
    for by_dtype in by_device.values():
        joined = [torch.hstack([tensors[i] for i in indices]).double() for indices in by_dtype.values()]
        numbers = iter(torch.cat(joined).tolist())
        for i in (i for indices in by_dtype.values() for i in indices):
            values[i] = list(islice(numbers, tensors[i].numel()))
    return values


def _by_layer(name: str, value: Reduced, layers: tuple[int, ...]) -> Iterator[tuple[str, Reduced]]:
    """A metric of all layers as its total and each layer's own value; any other metric as it is."""
    if isinstance(value, Loads):
        value = value.violation()
        yield f"{name}_worst", Extreme(value.numerator_L.max(), 1)
    if not isinstance(value, LayerMeans):
        yield name, value
        return
    yield name, value.total()
    for number, mean in zip(layers, value.layers() if layers else (), strict=False):
        yield f"{name}/layer_{number:02d}", mean


def _divide(kind: Reduced, parts: list[float]) -> tuple[float | None, int | None]:
    """A metric's value and denominator."""
    if isinstance(kind, Mean | RootMean):
        numerator, denominator = parts
        if not 0 < denominator < math.inf:  # sums of weights are NaN or infinite where the update is
            return None, 0
        mean = numerator / denominator
        return (mean if isinstance(kind, Mean) else math.sqrt(mean)), int(denominator)
    if isinstance(kind, Spread):
        count, _, squares = parts
        return (math.sqrt(squares / (count - 1)) if count > 1 else None), int(count)
    if isinstance(kind, Kish):
        total, squares, count = parts
        return (total**2 / (count * squares) if squares else None), int(count)
    assert isinstance(kind, Extreme | Total)
    return parts[0], None


KINDS: dict[str, Any] = {k.__name__: k for k in (Mean, RootMean, Extreme, Spread, Kish, Tail, LayerMeans, Total, Loads)}


def merge_ranks(metrics: Accumulator, ranks: Ranks) -> Accumulator:
    """The metrics over all ranks, on all ranks; a rank may lack a metric."""
    if ranks.size == 1:
        return metrics
    merged = Accumulator()
    for table in ranks.all_gather(lambda: {name: _to_json(value) for name, value in metrics.values.items()}):
        merged.add({name: KINDS[kind](*map(_from_json, parts)) for name, (kind, parts) in table.items()})
    return merged


def _to_json(value: Reduced) -> tuple[str, list[Any]]:
    """A metric as its kind and its parts; an int stays an int."""

    def plain(part: Any) -> Any:
        if isinstance(part, tuple):
            return [plain(one) for one in part]
        return {"tensor": part.double().tolist()} if isinstance(part, Tensor) else part

    return type(value).__name__, [plain(part) for part in value]


def _from_json(part: Any) -> Any:
    if isinstance(part, list):
        return tuple(map(_from_json, part))
    return torch.tensor(part["tensor"], dtype=torch.float64) if isinstance(part, dict) else int(part)


def all_rows(matrices: list[Tensor], kind: torch.dtype, ranks: Ranks) -> tuple[Tensor, int]:
    """The rows of all ranks' matrices in one [B, T], in rank order and padded with 0; and this rank's first row."""
    shape = [sum(len(matrix) for matrix in matrices), max((matrix.shape[1] for matrix in matrices), default=0)]
    shapes = ranks.all_gather(lambda: shape)
    width = max(columns for _, columns in shapes)
    padded = [F.pad(matrix, (0, width - matrix.shape[1])) for matrix in matrices]
    if ranks.size == 1:
        return torch.cat(padded), 0
    mine = b"".join(matrix.cpu().contiguous().numpy().tobytes() for matrix in padded)
    rows = torch.frombuffer(bytearray(b"".join(all_gather_bytes(mine))), dtype=kind).view(-1, width)
    return rows, sum(count for count, _ in shapes[: ranks.rank])
