"""Engine `transformers`: samples in this process from the trainer's own model, so there is nothing to synchronise."""

import time
from collections.abc import Iterator

import torch
import transformers
from transformers import PreTrainedModel

from gspo_cli.events import SamplingProgress
from gspo_cli.models.admission import paths_of
from gspo_cli.models.compiled import compiled_step
from gspo_cli.models.decoding import cache_size
from gspo_cli.models.fixed import FixedStep, padded_length, padded_rows
from gspo_cli.models.log_probs import vocabulary
from gspo_cli.models.precision import Rounded, compute_dtype, computing
from gspo_cli.models.sharding import copy_full
from gspo_cli.moe.routers import Routing
from gspo_cli.rollout.builtin.sampler import sample
from gspo_cli.rollout.engine import PROGRESS_S, EngineInfo, Progress, SampleKey
from gspo_cli.types import Prompt, Sample, Sampling


class Meter:
    """Adds up what the sampler draws, and reports it now and then."""

    def __init__(self, wanted: int, max_new_tokens: int, progress: Progress) -> None:
        self.wanted, self.max_new_tokens, self.progress = wanted, max_new_tokens, progress
        self.done = self.tokens = self.tokens_of_done = 0
        self.reported = time.monotonic()

    def count(self, drawn: int, ended: int, position: int) -> None:
        """Takes in one token for `drawn` responses, of which `ended` end with it; `position`: its index in each."""
        self.tokens, self.done = self.tokens + drawn, self.done + ended
        self.tokens_of_done += ended * (position + 1)
        now = time.monotonic()
        if self.done < self.wanted and now - self.reported < PROGRESS_S:
            return
        self.reported = now
        unfinished = (self.tokens - self.tokens_of_done) / self.max_new_tokens
        self.progress(SamplingProgress(self.done, self.wanted, self.tokens, (self.done + unfinished) / self.wanted))


class TransformersEngine:
    """The built-in sampler behind the `Engine` protocol."""

    def __init__(
        self,
        model: PreTrainedModel,
        stop_ids: frozenset[int],
        kv_budget_gb: float,
        deadline_s: float,
        routing: Routing | None = None,
        progress: Progress = lambda _: None,
        compiles: bool = False,
    ) -> None:
        """With `compiles`, the first request compiles the decoding step; then its memory is kept."""
        assert not (compiles and routing)
        self.compiles = compiles
        self.step: FixedStep | None = None
        self.addresses: Rounded | None = {} if compiles else None
        self.model, self.routing, self.stop_ids, self.progress = model, routing, stop_ids, progress
        self.kv_budget, self.deadline_s = kv_budget_gb * 2**30, deadline_s
        self.weight_version = 0
        self.info = EngineInfo(
            name="transformers",
            versions={"transformers": transformers.__version__, "torch": torch.__version__},
            dtype=str(compute_dtype(model)).removeprefix("torch."),
            stop_ids=tuple(sorted(stop_ids)),
            vocabulary=vocabulary(model),
            routes=routing is not None,
        )

    def generate(self, prompts: list[Prompt], sampling: Sampling, seeds: dict[SampleKey, int]) -> list[Sample]:
        """See `Engine.generate`. Errors: GspoError if the step is to be compiled and cannot be."""
        keys: dict[str, list[SampleKey]] = {p.problem_id: [] for p in prompts}
        for key in seeds:
            keys[key[0]].append(key)
        samples: list[Sample] = []
        meter = Meter(len(seeds), sampling.max_new_tokens, self.progress)
        with torch.no_grad(), computing(self.model, self.addresses):
            if self.compiles and self.step is None:
                self.step = compiled_step(self.model)
            deadline = time.monotonic() + self.deadline_s
            for batch in self._batches(prompts, keys, sampling.max_new_tokens):
                token_ids = [prompt.token_ids for prompt, _ in batch]
                its_seeds = [[seeds[key] for key in of] for _, of in batch]
                drawn = sample(
                    self.model, token_ids, its_seeds, sampling, self.stop_ids, deadline, self.routing, meter.count,
                    self.step,
                )  # fmt: skip
                samples += [
                    Sample(
                        *key, seeds[key], tuple(d.token_ids), tuple(d.log_probs),
                        "stop" if d.stopped else "length", self.weight_version, d.routes_TLK,
                    )
                    for (_, of), group in zip(batch, drawn, strict=True)
                    for key, d in zip(of, group, strict=True)
                ]  # fmt: skip
        return samples

    def sync(self, weights: PreTrainedModel, version: int) -> None:
        """The model is the trainer's own, so only the version moves; or it is a full copy of a sharded model."""
        if weights is not self.model:
            copy_full(weights, self.model, frozen=False)  # frozen weights were copied at the start
        self.weight_version = version

    def rest(self) -> None:
        """Nothing: the trainer uses the same memory."""

    def close(self) -> None:
        """Nothing to release."""

    def _batches(
        self, prompts: list[Prompt], keys: dict[str, list[SampleKey]], max_new_tokens: int
    ) -> Iterator[list[tuple[Prompt, list[SampleKey]]]]:
        """The samples, in order, in batches whose cache fits the budget, a row for each; at least one sample each."""
        size = cache_size(self.model, paths_of(self.model).cache)
        fitted = (padded_rows, padded_length) if self.compiles else (int, int)
        batch: list[tuple[Prompt, list[SampleKey]]] = []
        rows = longest = 0
        for prompt in prompts:
            longest = max(longest, len(prompt.token_ids))
            batch.append((prompt, []))
            for key in keys[prompt.problem_id]:
                one = size.row + size.token * fitted[1](longest + max_new_tokens)
                if rows and fitted[0](rows + 1) * one > self.kv_budget:
                    yield [(p, of) for p, of in batch if of]
                    batch, rows, longest = [(prompt, [])], 0, len(prompt.token_ids)
                batch[-1][1].append(key)
                rows += 1
        yield [(p, of) for p, of in batch if of]
