"""torch as every command runs it: its device, fixed threads, deterministic kernels."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gspo_cli.errors import GspoError


def pick_device(name: str) -> torch.device:
    """The device that a recipe names; `auto` is cuda if available, else cpu.

    Errors: GspoError for a device that is unknown to torch or not available.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # whose pinned memory and statistics are meant where no device is named
    except (RuntimeError, AssertionError) as error:
        raise GspoError(f"cannot use device {name!r}", str(error).splitlines()[0], "model.device = 'auto'") from error
    return device


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on the device. The host goes on while a GPU copies from pinned memory; a plain `.to(device)` would
    wait until the GPU has done all that was asked of it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def upload_together(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """One-dimensional arrays of int64 or float64 on the device, after a single copy: each copy costs the host time."""
    packed_N = upload(torch.from_numpy(np.concatenate([array.view(np.int64) for array in arrays])), device)
    parts = packed_N.split([len(array) for array in arrays])
    return [
        part.view(torch.float64) if array.dtype == np.float64 else part
        for part, array in zip(parts, arrays, strict=True)
    ]


def prepare_torch(threads: int | None, float32_matmul: str = "highest") -> None:
    """Fixes threads and kernels, so that a seed determines the result.

    On a GPU an operation without a deterministic kernel only warns: torch names `cumsum` among them, which the sampler
    needs. `float32_matmul`: torch's name for the precision of float32 products, which only a GPU heeds.
    """
    torch.set_float32_matmul_precision(float32_matmul)
    torch.backends.cudnn.allow_tf32 = float32_matmul != "highest"
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_flush_denormal(True)  # Adam's moments of rarely used experts get that small, and slow a CPU down


@contextmanager
def deterministic_kernels(wanted: bool = True) -> Iterator[None]:
    """Within the context, an operation without a deterministic kernel fails instead of warning; or, if they are not
    `wanted`, torch takes any kernel.

    Attention has deterministic kernels, but as long as operations may warn, torch gives it faster ones that are not.
    """
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(wanted)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def determinism() -> dict[str, Any]:
    """The flags in force, for `run.json`."""
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "float32_matmul": torch.get_float32_matmul_precision(),
        "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }
