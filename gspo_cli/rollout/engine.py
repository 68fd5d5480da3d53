"""The protocol of engines, which sample responses; checks of their answers, and of what a recipe asks of them."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from math import isfinite
from typing import TYPE_CHECKING, Protocol

from gspo_cli.config import RolloutConfig
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.events import SamplingProgress
from gspo_cli.plugins import is_plugin, load_plugin
from gspo_cli.types import Prompt, Sample, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SampleKey = tuple[str, int]
"""(problem id, index within the group)."""


@dataclass(frozen=True)
class EngineInfo:
    """An engine's entry in `run.json`."""

    name: str
    versions: dict[str, str]
    dtype: str
    stop_ids: tuple[int, ...]
    vocabulary: int
    routes: bool = False
    """Whether its samples include the experts that it chose."""


@dataclass(frozen=True)
class SyncReport:
    """What a synchronisation moved, and how far apart both sides' log-probabilities of the probe are afterwards."""

    version: int
    tensors: int
    absdiff_max: float
    absdiff_mean: float
    wake_room_gb: float | None = None
    """What was free on the GPU, beyond what a sleeping engine needed to wake up; None where none slept."""


Progress = Callable[[SamplingProgress], None]
PROGRESS_S = 0.2
"""Least time between two reports of an engine."""


class Engine(Protocol):
    """Samples responses from the weights it holds. It exchanges token ids, never text."""

    info: EngineInfo
    weight_version: int
    """The rollout batches that its weights have been trained on."""

    def generate(self, prompts: list[Prompt], sampling: Sampling, seeds: dict[SampleKey, int]) -> list[Sample]:
        """One sample for each key of `seeds`, drawn with that seed; in any order."""

    def sync(self, weights: PreTrainedModel, version: int) -> SyncReport | None:
        """Takes over the trainer's current weights; returns None if the engine shares them anyway.

        Errors: GspoError (exit code 5) when the engine then computes something else than the trainer.
        """

    def rest(self) -> None:
        """Gives the accelerator's memory to the trainer until the next `sync`."""

    def close(self) -> None:
        """Releases everything it holds."""


class OverlappingEngine(Engine, Protocol):
    """An engine that can sample while its caller does something else."""

    def begin(self, prompts: list[Prompt], sampling: Sampling, seeds: dict[SampleKey, int]) -> None:
        """Starts sampling; `generate` with the same arguments takes the samples."""


def overlaps(config: RolloutConfig) -> bool:
    """Whether the recipe's engine is an `OverlappingEngine`."""
    return config.engine == "vllm-server"


def full_distribution(config: RolloutConfig) -> Sampling:
    """How training samples: without top-k and top-p, so that its log-probabilities are those of the policy."""
    return Sampling(config.temperature, config.max_new_tokens)


def generate_checked(
    engine: Engine, prompts: list[Prompt], sampling: Sampling, seeds: dict[SampleKey, int], version: int
) -> dict[SampleKey, Sample]:
    """All samples by key, or an error: training never sees a partial group or an invalid sample.

    Errors: GspoError for a prompt with a token that the model lacks.
    GspoError (exit code 5) for stale weights, for a missing, extra or repeated sample, and for an invalid one.
    (An engine that dies or hangs raises its own error.)
    """
    if engine.weight_version != version:
        raise _rejected(f"the engine holds the weights of step {engine.weight_version}, not {version}")
    for prompt in prompts:
        if (largest := max(prompt.token_ids)) >= engine.info.vocabulary:
            raise GspoError(
                f"the model has no token {largest}",
                f"the prompt of problem {prompt.problem_id!r} holds it, and the model has {engine.info.vocabulary}",
                "take the tokenizer and the weights from the same model",
            )
    samples = engine.generate(prompts, sampling, seeds)
    keys = Counter((s.problem_id, s.index) for s in samples)
    if keys != Counter(seeds.keys()):
        missing, extra = Counter(seeds.keys()) - keys, keys - Counter(seeds.keys())
        raise _rejected(f"{sum(missing.values())} samples missing, {sum(extra.values())} too many of {len(seeds)}")
    for sample in samples:
        if fault := _fault(sample, sampling, engine.info.vocabulary, version):
            raise _rejected(f"sample {sample.index} of {sample.problem_id!r}: {fault}")
    return {(s.problem_id, s.index): s for s in samples}


def _fault(sample: Sample, sampling: Sampling, vocabulary: int, version: int) -> str | None:
    if not 1 <= len(sample.token_ids) <= sampling.max_new_tokens:
        return f"{len(sample.token_ids)} tokens where 1 to {sampling.max_new_tokens} are allowed"
    if len(sample.log_probs) != len(sample.token_ids):
        return "it does not have one log-probability per token"
    if not all(isfinite(lp) and lp <= 1e-4 for lp in sample.log_probs):
        return "a log-probability is not finite or is positive"
    if not all(0 <= t < vocabulary for t in sample.token_ids):
        return "a token id is outside the vocabulary"
    if sample.finish == "abort":
        return "it was aborted"
    if sample.weight_version != version:
        return f"it was drawn with the weights of step {sample.weight_version}, not {version}"
    return None


def _rejected(why: str) -> GspoError:
    return GspoError("the engine's answer was rejected", why, "no update used it; please report this", ExitCode.ENGINE)


HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""The widths for which vLLM 0.32's attention kernels for CPUs are compiled."""


def check_engine(config: RolloutConfig, device: str, routes: bool, trains: bool, head_dim: int | None) -> None:
    """Checks that the engine can do what is asked of it, before anything is loaded.

    `device` = type of the trainer's device; `routes` = expert choices are wanted; `trains` = the weights will change;
    `head_dim` = width of the model's attention heads, None if not known yet.
    Errors: GspoError that names what the engine lacks.
    """
    engine, on_gpu = config.engine, device == "cuda"
    if is_plugin(engine):
        load_plugin(engine, needs=("__call__",))
    if config.compile and (engine != "transformers" or routes):
        raise GspoError(
            "rollout.compile with " + ("recorded expert choices" if routes else f"engine {engine}"),
            "only the built-in sampler is compiled, and its compiled step does not say which experts it chose",
            "leave out rollout.compile" + (", or algo.replay = 'r3' and rollout.routes" if routes else ""),
        )
    if engine == "vllm-server" and trains and on_gpu and find_spec("vllm") is None:
        raise GspoError(
            "engine vllm-server needs vLLM beside the trainer as well, to train on a GPU",
            "vLLM's sender hands the server new weights over NCCL, and vLLM is not installed here",
            "pip install 'gspo[vllm]'",
        )
    if engine == "vllm-server" and config.vllm.url is None:
        raise GspoError(
            "engine vllm-server needs rollout.vllm.url",
            "it connects to a server that is already running",
            "--set rollout.vllm.url=http://127.0.0.1:8000; docs/vllm.md has the command that starts one",
        )
    if routes and engine != "transformers" and not (engine == "vllm" and on_gpu):
        raise GspoError(
            f"engine {engine} cannot report which experts it chose" + (" on a CPU" if engine == "vllm" else ""),
            "a server's answers do not include them; vLLM itself reports them by Triton, which has no CPU backend",
            "rollout.engine = 'transformers', or leave out algo.replay = 'r3' and rollout.routes",
        )
    if engine == "vllm" and not on_gpu:
        find_python(config.vllm.python)
        if head_dim is not None and head_dim not in HEAD_DIMS:
            raise GspoError(
                f"vLLM cannot run this model on a CPU: its attention heads are {head_dim} wide",
                f"its kernels support {', '.join(map(str, HEAD_DIMS))}, and fail at the first prompt otherwise",
                "--set model.tiny.head_dim=32 for a model that is built here, else rollout.engine = 'transformers'",
            )


def check_spread(config: RolloutConfig, ranks: int) -> None:
    """Errors: GspoError when the run's processes cannot be divided into engines of `tensor_parallel` processes."""
    spread = config.vllm.tensor_parallel
    if config.engine == "vllm" and ranks % spread:
        raise GspoError(
            f"rollout.vllm.tensor_parallel = {spread} with {ranks} process" + ("es" if ranks > 1 else ""),
            "an engine that is spread over GPUs has one process of the run on each of them",
            f"--launcher torchrun --nproc N with N a multiple of {spread}, or rollout.vllm.tensor_parallel = 1",
        )


def find_python(path: str | None) -> str:
    """The interpreter named by `rollout.vllm.python`. Errors: GspoError if it is unset or cannot be run."""
    program = shutil.which(os.path.expanduser(path or ""))
    if program is None:
        unset = "engine vllm needs rollout.vllm.python on a CPU"
        raise GspoError(
            f"rollout.vllm.python = {path!r} is not a program that can run" if path else unset,
            "vLLM's CPU build needs its own environment, because its requirements would break this one",
            "docs/vllm.md has the commands that create the environment; `gspo doctor` checks it",
        )
    return os.path.abspath(program)
