"""Where engine `vllm` runs: on a CPU in a child process with an interpreter of its own, on a GPU in this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gspo_cli.config import RolloutConfig
from gspo_cli.errors import GspoError
from gspo_cli.models.foreign_code import allowed_code
from gspo_cli.ranks import ALONE, Ranks
from gspo_cli.rollout.capabilities import check_spread, find_python
from gspo_cli.rollout.host import Host, HostLost, HostRefused
from gspo_cli.rollout.process_host import ProcessHost
from gspo_cli.rollout.transfer import free_port
from gspo_cli.rollout.weights import named_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""vLLM's core in the process that calls it: calls by name reach it, and nothing is pickled."""
LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
"""What `torchrun` tells a rank: an engine in a process of its own belongs to another group."""


def vllm_host(
    config: RolloutConfig, model: PreTrainedModel, stop_ids: frozenset[int], routes: bool, ranks: Ranks = ALONE
) -> Callable[[], Host]:
    """What opens the host that fits the model's device. Nothing is started yet; all ranks must call it.

    Errors: as `check_spread`.
    """
    spread = config.vllm.tensor_parallel
    check_spread(config, ranks.size)
    options = {
        "model": model.name_or_path,
        "revision": getattr(model.config, "_commit_hash", None),
        "dtype": config.vllm.dtype or str(model.dtype).removeprefix("torch."),
        "stop_ids": sorted(stop_ids),
        "kv_bytes": int(config.kv_budget_gb * 2**30),
        "routes": routes,
        "tensor_parallel": spread,
        "external": ranks.size > 1 if model.device.type == "cuda" else spread > 1,
    } | ({"code_revision": code} if (code := allowed_code()) else {})
    if model.device.type == "cuda":
        return lambda: InProcessHost(options)
    python = find_python(config.vllm.python)
    env = child_environment(torch.get_num_threads())
    if spread > 1:  # the children of `spread` neighbours are a group of their own
        port = ranks.everywhere(free_port)[ranks.rank - ranks.rank % spread]
        place = str(ranks.rank % spread)
        env |= {"RANK": place, "LOCAL_RANK": place, "WORLD_SIZE": str(spread), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port)}  # fmt: skip
    return lambda: ProcessHost(python, "vllm_host.py", options, env, config.deadline_s)


def child_environment(threads: int) -> dict[str, str]:
    """The child's variables: they must stand before its interpreter starts."""
    others = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", *LAUNCHER)
    ours = {k: v for k, v in os.environ.items() if not k.startswith(others)}
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

    give_up = close
