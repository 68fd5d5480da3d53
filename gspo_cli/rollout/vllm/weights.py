"""The trainer's weights on their way to an engine: a stream of tensors, or a safetensors file in anonymous memory.

Weights that are divided over ranks are gathered tensor by tensor, so all ranks must go through them together.

The file has no name, so nothing is left behind however either process ends, and it is written tensor by tensor, so
there is never a second copy on this side. The format: https://github.com/huggingface/safetensors#format
"""

import json
import os
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gspo_cli.models.sharding import full_tensor

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def named_weights(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Every parameter once (tied ones under their first name), in the engine's precision."""
    for name, parameter in model.named_parameters():
        yield name, full_tensor(parameter.detach().to(dtype))


class TensorFacts(NamedTuple):
    """What a receiver must know before the tensor comes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class WeightStream:
    """What vLLM's senders read: `metadata`, and the same tensors in the same order each time it is gone through."""

    dtype = torch.float32
    """That travels."""

    def begin(self, model: nn.Module) -> None:
        """The weights of the next pass."""
        self.model, self._left = model, named_weights(model, self.dtype)

    def metadata(self) -> list[TensorFacts]:
        """Without gathering anything."""
        return [TensorFacts(name, self.dtype, tuple(p.shape)) for name, p in self.model.named_parameters()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        self._left = named_weights(self.model, self.dtype)
        return self._left

    def drain(self) -> None:
        """Gathers what a broken pass left, since the other ranks gather it too."""
        for _ in self._left:
            pass


def write_weights(model: nn.Module, dtype: torch.dtype, file: int | None) -> int:
    """Writes them to an open file, from its start, and returns how many there are. Without a file they are gathered
    for the rank that has one."""
    header: dict[str, dict[str, object]] = {}
    end = 0
    for name, parameter in model.named_parameters():
        start, end = end, end + parameter.numel() * dtype.itemsize
        header[name] = {"dtype": DTYPES[dtype], "shape": list(parameter.shape), "data_offsets": [start, end]}
    if file is None:
        for _ in named_weights(model, dtype):
            pass
        return len(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)
    _write(file, len(text).to_bytes(8, "little") + text)
    for _, tensor in named_weights(model, dtype):
        _write(file, tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return len(header)


def _write(file: int, data: bytes | memoryview | object) -> None:
    """All of `data`; one system call takes at most 2 GiB."""
    rest = memoryview(data).cast("B")  # type: ignore[arg-type]
    while rest:
        rest = rest[os.write(file, rest) :]
