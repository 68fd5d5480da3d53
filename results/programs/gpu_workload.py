"""What the points of gpu.py share: models built from their shapes, random batches, learners, clocks."""

from __future__ import annotations

import hashlib
import json
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.config import AlgoConfig
from gspo_cli.models.admission import admit
from gspo_cli.moe.routers import find_routing
from gspo_cli.training.step.batches import Batching, make_mini_batches, rewards_and_groups
from gspo_cli.training.step.update import Learner
from gspo_cli.types import Group, MiniBatch, Problem, Prompt, RolloutBatch, Sample, Score

Report = dict[str, Any]
STARTED = time.monotonic()


class Cases:
    """What a point has found, printed after each of its cases, which begin only while there is time."""

    def __init__(self, seconds: float) -> None:
        self.found: Report = {}
        self.seconds = seconds

    @property
    def left(self) -> float:
        """Seconds in which cases may begin."""
        return self.seconds - (time.monotonic() - STARTED)

    def begin(self, name: str) -> bool:
        """Whether there is time for the case; prints what there is so far."""
        self.show()
        if self.left <= 0:
            self.found.setdefault("left_out", []).append(name)
        return self.left > 0

    def show(self) -> None:
        """What there is so far."""
        print(json.dumps(self.found), flush=True)


DENSE = {
    "vocab_size": 151_936, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "tie_word_embeddings": True,
    "max_position_embeddings": 40_960, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}  # fmt: skip
"""Qwen3-0.6B's shape (its config.json)."""
MOE = DENSE | {
    "hidden_size": 1024, "num_hidden_layers": 16, "moe_intermediate_size": 512, "num_experts": 32,
    "num_experts_per_tok": 4, "norm_topk_prob": True,
}  # fmt: skip
"""A Qwen3-MoE of about 1 B parameters."""
SMALL = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 64,
}  # fmt: skip
STOP = frozenset({-1})


def build(
    moe: bool, tiny: bool, device: str, dtype: torch.dtype = torch.float32, **shape: int
) -> PreTrainedModel:  # fmt: skip
    """A random model on the device; the same weights in every process. `shape` replaces what small models have."""
    torch.manual_seed(0)
    small = SMALL | shape if tiny else {}
    with torch.device(device):  # a GPU draws a billion weights sooner
        if moe:
            small |= {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2} if tiny else {}
            model: PreTrainedModel = Qwen3MoeForCausalLM(Qwen3MoeConfig(**(MOE | small)))
        else:
            model = Qwen3ForCausalLM(Qwen3Config(**(DENSE | small)))
    model = model.to(dtype).eval()
    admit(model, "the benchmark's model")
    return model


def wait(device: str) -> None:
    """Until the device has done all that was asked of it."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], device: str, repeats: int, warm_up: int = 1) -> list[float]:
    """Clock time of each repeat, after some that warm up."""
    found = []
    for _ in range(repeats + warm_up):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        found.append(time.perf_counter() - start)
    return found[warm_up:]


def places_of_waits(work: Callable[[], object], device: str) -> dict[str, int]:
    """How often each line of Python made the host wait for the GPU, by torch's own account; nothing on a CPU."""
    if device != "cuda":
        work()
        return {}
    torch.cuda.set_sync_debug_mode("warn")
    try:
        found = _warnings(work, "called a synchronizing CUDA operation")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return dict(Counter(f"{Path(w.filename).name}:{w.lineno}" for w in found))


def not_deterministic(work: Callable[[], object]) -> list[str]:
    """What torch warns of because it has no deterministic kernel for it, or does not use it."""
    return sorted({str(w.message).split(".")[0][:150] for w in _warnings(work, "deterministic")})


def _warnings(work: Callable[[], object], text: str) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return [w for w in caught if text in str(w.message)]


def batch_of(model: PreTrainedModel, groups: int, samples: int, prompt: int, response: int) -> RolloutBatch:
    """Random responses of one length whose rewards differ within each group."""
    g = torch.Generator().manual_seed(1)
    top = min(50_000, int(model.config.vocab_size))
    made = []
    for i in range(groups):
        prompt_ids = tuple(torch.randint(5, top, (prompt,), generator=g).tolist())
        drawn = tuple(
            Sample(str(i), j, 0, tuple(torch.randint(5, top, (response,), generator=g).tolist()),
                   (-math.log(top),) * response, "length", 0)
            for j in range(samples)
        )  # fmt: skip
        scores = tuple(Score(float(j % 2), "") for j in range(samples))
        made.append(Group(Problem(str(i), "", ""), Prompt(str(i), prompt_ids), drawn, ("",) * samples, scores))
    return RolloutBatch(1, tuple(made), response)


def learner_of(model: PreTrainedModel) -> Learner:
    """GSPO with AdamW."""
    algorithm, trained = ALGORITHMS["gspo"], [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=True)
    algo = AlgoConfig(name="gspo")
    return Learner(model, optimizer, algorithm, algorithm.Params(), algo, 1.0, 1.0, routing=find_routing(model))


def minis_of(learner: Learner, batch: RolloutBatch, minibatches: int, tokens: int) -> list[MiniBatch]:
    advantages_B = learner.algorithm.advantage(*rewards_and_groups(batch), learner.params)
    batching = Batching(minibatches, tokens, packed=True)
    return make_mini_batches(batch, advantages_B, batching, learner.model.device)


def digest(model: PreTrainedModel) -> str:
    """sha256 of all weights, shortened."""
    found = hashlib.sha256()
    for p in model.parameters():
        found.update(p.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]
