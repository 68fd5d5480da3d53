"""The trainer's weights on their way to an engine in another process: a safetensors file in anonymous memory.

The file has no name, so nothing is left behind however either process ends, and it is written tensor by tensor, so
there is never a second copy on this side. The format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import torch
from torch import Tensor, nn

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def named_weights(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Every parameter once (tied ones under their first name), in the engine's precision."""
    for name, parameter in model.named_parameters():
        yield name, parameter.detach().to(dtype)


def write_weights(model: nn.Module, dtype: torch.dtype, file: int) -> int:
    """Writes them to an open file, from its start, and returns how many there are."""
    header: dict[str, dict[str, object]] = {}
    end = 0
    for name, parameter in model.named_parameters():
        start, end = end, end + parameter.numel() * dtype.itemsize
        header[name] = {"dtype": DTYPES[dtype], "shape": list(parameter.shape), "data_offsets": [start, end]}
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
