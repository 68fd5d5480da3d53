"""Where engine `vllm` runs: on a CPU in a child process with an interpreter of its own, on a GPU in this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gspo_cli.config import RolloutConfig
from gspo_cli.errors import GspoError
from gspo_cli.models.foreign_code import allowed_code
from gspo_cli.rollout.capabilities import find_python
from gspo_cli.rollout.host import Host, HostLost, HostRefused
from gspo_cli.rollout.process_host import ProcessHost
from gspo_cli.rollout.weights import named_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""vLLM's core in the process that calls it: calls by name reach it, and nothing is pickled."""


def vllm_host(
    config: RolloutConfig, model: PreTrainedModel, stop_ids: frozenset[int], routes: bool
) -> Callable[[], Host]:
    """What opens the host that fits the model's device. Nothing is started yet.

    Errors: GspoError for an engine on several GPUs.
    """
    if config.vllm.tensor_parallel > 1:
        raise GspoError(
            f"rollout.vllm.tensor_parallel = {config.vllm.tensor_parallel}",
            "an engine that gspo starts runs on one GPU; several are planned for (--dry-run) and not built yet",
            "remove it, or rollout.engine = 'transformers'",
        )
    options = {
        "model": model.name_or_path,
        "revision": getattr(model.config, "_commit_hash", None),
        "dtype": config.vllm.dtype or str(model.dtype).removeprefix("torch."),
        "stop_ids": sorted(stop_ids),
        "kv_bytes": int(config.kv_budget_gb * 2**30),
        "routes": routes,
    } | ({"code_revision": code} if (code := allowed_code()) else {})
    if model.device.type == "cuda":
        return lambda: InProcessHost(options)
    python, threads = find_python(config.vllm.python), torch.get_num_threads()
    return lambda: ProcessHost(python, "vllm_host.py", options, child_environment(threads), config.deadline_s)


def child_environment(threads: int) -> dict[str, str]:
    """The child's variables: they must stand before its interpreter starts."""
    ours = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    bound = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    return ours | QUIET | IN_PROCESS | bound


class InProcessHost:
    """vLLM in this process, sharing the GPU with the trainer by sleep and wake. Not yet run on a GPU."""

    replaceable = False  # what a failed engine leaves on the GPU cannot be told from what the trainer needs

    def __init__(self, options: dict[str, Any]) -> None:
        os.environ.update(QUIET | IN_PROCESS)
        try:
            from gspo_cli.rollout.hosts.vllm_backend import Backend
        except ImportError as error:
            raise GspoError("engine vllm is not installed", str(error), "pip install 'gspo[vllm]'") from error
        self.backend = Backend(**options)
        self.facts = self.backend.facts

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """See `Host.ask`."""
        try:
            answer: dict[str, Any] = getattr(self.backend, do)(**request)
        except TimeoutError as error:
            raise HostLost(str(error)) from error
        except ValueError as error:
            raise HostRefused(str(error)) from error
        return answer

    def load(self, weights: PreTrainedModel, version: int) -> dict[str, Any]:
        """See `Host.load`: tensors are copied from the trainer's memory one by one."""
        named = named_weights(weights, getattr(torch, str(self.facts["dtype"])))
        count = sum(1 for _ in weights.named_parameters())
        return self.ask("load", version=version, repack=False, weights=named) | {"tensors": count}

    def close(self) -> None:
        """vLLM frees its memory with the process."""
