"""What an engine cannot do, known before anything is loaded."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

from gspo_cli.config import RolloutConfig
from gspo_cli.errors import GspoError

HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""What vLLM 0.32's attention kernels for CPUs are compiled for."""


def check_engine(config: RolloutConfig, device: str, routes: bool, trains: bool, head_dim: int | None) -> None:
    """`device` = type of the trainer's; `routes` = expert choices are wanted; `trains` = the weights will change;
    `head_dim` = width of the model's attention heads, None where it is not known yet.

    Errors: GspoError with what the engine lacks.
    """
    engine, on_gpu = config.engine, device == "cuda"
    if engine == "vllm-server" and trains and on_gpu and find_spec("vllm") is None:
        raise GspoError(
            "engine vllm-server needs vLLM beside the trainer as well, to train on a GPU",
            "its sender hands the server new weights over NCCL, and it is not installed here",
            "pip install 'gspo[vllm]'",
        )
    if engine == "vllm-server" and config.vllm.url is None:
        raise GspoError(
            "engine vllm-server needs rollout.vllm.url",
            "it talks to a server that runs already",
            "--set rollout.vllm.url=http://127.0.0.1:8000; docs/vllm.md has the command that starts one",
        )
    if routes and engine != "transformers" and not (engine == "vllm" and on_gpu):
        raise GspoError(
            f"engine {engine} cannot say which experts it chose" + (" on a CPU" if engine == "vllm" else ""),
            "the part of vLLM that gives them needs Triton, which has no CPU backend"
            if engine == "vllm"
            else "its answers do not hold them",
            "rollout.engine = 'transformers', or leave out algo.replay = 'r3' and rollout.routes",
        )
    if engine == "vllm" and not on_gpu:
        find_python(config.vllm.python)
        if head_dim is not None and head_dim not in HEAD_DIMS:
            raise GspoError(
                f"vLLM cannot run this model on a CPU: its attention heads are {head_dim} wide",
                f"its kernels are made for {', '.join(map(str, HEAD_DIMS))}, and fail at the first prompt",
                "--set model.tiny.head_dim=32 for a model that is built here, else rollout.engine = 'transformers'",
            )


def check_spread(config: RolloutConfig, ranks: int) -> None:
    """Errors: GspoError when the run's processes cannot be cut into engines of `tensor_parallel` of them."""
    spread = config.vllm.tensor_parallel
    if config.engine == "vllm" and ranks % spread:
        raise GspoError(
            f"rollout.vllm.tensor_parallel = {spread} with {ranks} process" + ("es" if ranks > 1 else ""),
            "an engine that is spread over GPUs has one process of the run on each of them",
            f"--launcher torchrun --nproc N with N a multiple of {spread}, or rollout.vllm.tensor_parallel = 1",
        )


def find_python(path: str | None) -> str:
    """The interpreter that `rollout.vllm.python` names.

    Errors: GspoError where it names none or nothing that runs.
    """
    hint = "docs/vllm.md has the commands that make the environment; `gspo doctor` checks it"
    if path is None:
        raise GspoError(
            "engine vllm needs rollout.vllm.python on a CPU",
            "vLLM's CPU build lives in an environment of its own, because its requirements would break this one",
            hint,
        )
    found = shutil.which(os.path.expanduser(path))
    if found is None:
        raise GspoError(f"rollout.vllm.python = {path!r} is no program", "the file is missing or does not run", hint)
    return os.path.abspath(found)
