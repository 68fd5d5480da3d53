"""Engine `transformers`: samples in this process from the trainer's own model, so there is nothing to synchronise."""

from __future__ import annotations

import time
from itertools import groupby

import torch
import transformers
from transformers import PreTrainedModel

from gspo_cli.models.sharding import copy_whole
from gspo_cli.moe.routers import Routing
from gspo_cli.rollout.engine import EngineInfo, SampleKey
from gspo_cli.rollout.sampler import Drawn, sample
from gspo_cli.types import Prompt, Sample, Sampling


class TransformersEngine:
    """The built-in sampler behind the `Engine` protocol."""

    def __init__(
        self,
        model: PreTrainedModel,
        stop_ids: frozenset[int],
        kv_budget_gb: float,
        deadline_s: float,
        routing: Routing | None = None,
    ) -> None:
        self.model = model
        self.routing = routing
        self.stop_ids = stop_ids
        self.kv_budget = kv_budget_gb * 2**30
        self.deadline_s = deadline_s
        self.weight_version = 0
        self.info = EngineInfo(
            name="transformers",
            versions={"transformers": transformers.__version__, "torch": torch.__version__},
            dtype=str(model.dtype).removeprefix("torch."),
            stop_ids=tuple(sorted(stop_ids)),
            vocabulary=model.config.vocab_size,
            routes=routing is not None,
        )

    def generate(self, prompts: list[Prompt], sampling: Sampling, seeds: dict[SampleKey, int]) -> list[Sample]:
        """See `Engine.generate`."""
        wanted: dict[str, list[SampleKey]] = {p.problem_id: [] for p in prompts}
        for key in seeds:
            wanted[key[0]].append(key)
        deadline = time.monotonic() + self.deadline_s
        was_training = self.model.training
        self.model.eval()
        samples: list[Sample] = []
        try:
            for part in self._parts(prompts, wanted, sampling.max_new_tokens):
                drawn = sample(
                    self.model,
                    [p.token_ids for p in part],
                    [[seeds[key] for key in wanted[p.problem_id]] for p in part],
                    sampling,
                    self.stop_ids,
                    deadline,
                    self.routing,
                )
                for prompt, group in zip(part, drawn, strict=True):
                    for key, d in zip(wanted[prompt.problem_id], group, strict=True):
                        samples.append(self._sample(key, seeds[key], d))
        finally:
            self.model.train(was_training)
        return samples

    def _sample(self, key: SampleKey, seed: int, drawn: Drawn) -> Sample:
        return Sample(
            problem_id=key[0],
            index=key[1],
            seed=seed,
            token_ids=tuple(drawn.token_ids),
            log_probs=tuple(drawn.log_probs),
            finish="stop" if drawn.stopped else "length",
            weight_version=self.weight_version,
            routes_TLK=drawn.routes_TLK,
        )

    def sync(self, weights: PreTrainedModel, version: int) -> None:
        """The model is the trainer's own, so only the version moves; or a whole copy of one divided over ranks."""
        if weights is not self.model:
            copy_whole(weights, self.model, frozen=False)  # what is not trained is there since the start
        self.weight_version = version

    def rest(self) -> None:
        """Nothing that the trainer does not use itself."""

    def close(self) -> None:
        """Nothing of its own to free."""

    def _parts(
        self, prompts: list[Prompt], wanted: dict[str, list[SampleKey]], max_new_tokens: int
    ) -> list[list[Prompt]]:
        """The prompts in portions whose keys and values fit the budget; at least one prompt each."""
        config = self.model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * self.model.dtype.itemsize
        longest = max(len(p.token_ids) for p in prompts) + max_new_tokens
        rows = max(1, int(self.kv_budget / (per_token * longest)))
        filled = 0

        def portion(prompt: Prompt) -> int:
            nonlocal filled
            first = filled
            filled += len(wanted[prompt.problem_id])
            return first // rows

        return [list(part) for _, part in groupby(prompts, key=portion)]
