"""Tiny stored rollout batches and the policies around them, for the tests of `gspo report batch`."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import torch
from transformers import PreTrainedModel

from gspo_cli.config import TinyModel
from gspo_cli.instruments.batch.data import read_batch
from gspo_cli.instruments.batch.measure import BatchMeasurements, measure
from gspo_cli.instruments.batch.policy import load_later_policy, load_sampling_policy
from gspo_cli.models.load import tokenizer_hash, weights_hash
from gspo_cli.models.tiny import build_tiny
from gspo_cli.rollout.store import write_rollout
from gspo_cli.types import Group, Problem, Prompt, RolloutBatch, Sample, Score

TEMPERATURE = 0.8
GROUPS, SAMPLES, LIMIT = 9, 4, 20


@dataclass(frozen=True)
class Stored:
    """A batch on disk and the policies on disk and in memory."""

    file: Path
    batch: RolloutBatch
    metadata: dict[str, str]
    start: Path
    """Folder of the policy that sampled."""
    later: Path
    """Folder of one with other weights."""
    start_model: PreTrainedModel
    later_model: PreTrainedModel

    def rewrite(self, folder: Path, batch: RolloutBatch | None = None, **metadata: str) -> Path:
        """The batch, or another in its place, written to a folder with some metadata changed."""
        target = folder / "step_000001.parquet"
        write_rollout(batch or self.batch, target, self.metadata | metadata)
        return target


def store(folder: Path) -> Stored:
    """Builds a random model, a neighbour of it, and responses with the model's own log-probabilities plus some noise
    in place of a sampler's."""
    start_model, tokenizer = build_tiny(TinyModel(hidden=16, layers=2, experts=4, top_k=2), seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in start_model.parameters():
            parameter.mul_(2.0)  # far from uniform
    later_model = copy.deepcopy(start_model)
    with torch.no_grad():
        for parameter in later_model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    for name, model in (("start", start_model), ("later", later_model)):
        model.eval().save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    batch = RolloutBatch(1, tuple(_group(start_model, g, Random(g)) for g in range(GROUPS)), LIMIT)
    metadata = {
        "model_sha256": weights_hash(start_model),
        "tokenizer_sha256": tokenizer_hash(tokenizer),
        "temperature": str(TEMPERATURE),
    }
    file = folder / "rollout" / "step_000001.parquet"
    write_rollout(batch, file, metadata)
    return Stored(file, batch, metadata, folder / "start", folder / "later", start_model, later_model)


def _group(model: PreTrainedModel, index: int, rng: Random) -> Group:
    """Responses of 1 to `LIMIT` tokens with rewards that differ."""
    prompt = tuple(rng.randrange(3, 90) for _ in range(rng.randint(2, 6)))
    samples = []
    for i in range(SAMPLES):
        ids = tuple(rng.randrange(3, 90) for _ in range(rng.randint(1, LIMIT)))
        exact = plain_log_probs(model, prompt, ids).tolist()
        noisy = tuple(min(0.0, p + rng.gauss(0, 0.01)) for p in exact)
        finish = "length" if len(ids) == LIMIT else "stop"
        samples.append(Sample(f"p{index}", i, rng.randrange(99), ids, noisy, finish, 0))
    scores = tuple(Score(float(i == index % SAMPLES) + 0.25 * rng.random(), "graded") for i in range(SAMPLES))
    problem = Problem(f"p{index}", "?", "!")
    return Group(problem, Prompt(problem.id, prompt), tuple(samples), ("",) * SAMPLES, scores)


def plain_log_probs(model: PreTrainedModel, prompt: tuple[int, ...], ids: tuple[int, ...]) -> torch.Tensor:
    """Of each response token, from the model's own logits, one response at a time: [T]."""
    logits_TV = model(torch.tensor([prompt + ids]), use_cache=False).logits[0].float() / TEMPERATURE
    log_probs_TV = torch.log_softmax(logits_TV, -1)[len(prompt) - 1 : -1]
    return log_probs_TV.gather(1, torch.tensor(ids)[:, None])[:, 0]


def measured(stored: Stored, file: Path, against: bool = False) -> BatchMeasurements:
    """What the report measures, without its figures; `against` = with the later policy."""
    batch = read_batch(file)
    sampling = load_sampling_policy(str(stored.start), batch)
    return measure(batch, sampling, load_later_policy(str(stored.later), batch, sampling) if against else None)


def with_scores(batch: RolloutBatch, values: list[float | None]) -> RolloutBatch:
    """The batch with the same rewards in every group."""
    scores = tuple(Score(v, "graded") for v in values)
    return replace(batch, groups=tuple(replace(g, scores=scores) for g in batch.groups))


def with_sample(batch: RolloutBatch, group: int, index: int, sample: Sample) -> RolloutBatch:
    """The batch with one sample in place of another."""
    old = batch.groups[group]
    samples = (*old.samples[:index], sample, *old.samples[index + 1 :])
    groups = (*batch.groups[:group], replace(old, samples=samples), *batch.groups[group + 1 :])
    return replace(batch, groups=groups)


def on_samples(batch: RolloutBatch, change: Callable[[Sample], Sample]) -> RolloutBatch:
    """The batch with every sample changed."""
    return replace(batch, groups=tuple(replace(g, samples=tuple(change(s) for s in g.samples)) for g in batch.groups))
