"""torch as every command of the tool runs it: fixed threads, deterministic kernels."""

from __future__ import annotations

import os
from typing import Any

import torch


def prepare_torch(threads: int | None) -> None:
    """Fixed threads and deterministic kernels, so that a seed fixes the result."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_flush_denormal(True)  # Adam's moments of rarely used experts fall that low, and slow a CPU down


def determinism() -> dict[str, Any]:
    """The flags as they are in force."""
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }
