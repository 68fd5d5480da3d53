"""Models and comparisons of the tests with the real vLLM."""

import os
from pathlib import Path

import torch
from transformers import PreTrainedModel

from gspo_cli.config import TinyModel
from gspo_cli.models.log_probs import token_scores
from gspo_cli.models.tiny import build_tiny
from gspo_cli.rollout.builtin.engine import TransformersEngine
from gspo_cli.rollout.engine import SampleKey
from gspo_cli.rollout.vllm.engine import HostedEngine
from gspo_cli.types import Prompt, Sample, Sampling

PROMPTS = [Prompt(f"p{n}", tuple(range(10, 10 + n))) for n in (1, 7, 20)]
SEEDS: dict[SampleKey, int] = {(p.problem_id, i): 1000 * len(p.token_ids) + i for p in PROMPTS for i in range(4)}
PYTHON = os.environ.get("GSPO_VLLM_PYTHON", "")
TOLERANCE = 1e-4
"""Nats between two programs that add float32 numbers in different orders."""


def saved(shape: TinyModel, folder: Path, tied: bool = True) -> Path:
    """A model folder with weights far from uniform, so that a wrong one shows."""
    model, tokenizer = build_tiny(shape, seed=1)
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0).clone())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # larger norms as well would blow rounding up
                parameter.mul_(5.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def moved(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """The trainer after an update: every parameter has changed, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.05 * (p.std() + 0.01 * p.abs().mean()))
    return model


def greedy(engine: HostedEngine, model: PreTrainedModel, prompts: list[Prompt], version: int) -> tuple[bool, float]:
    """Whether both engines say the same greedily, and the largest difference of the log-probabilities, in nats."""
    seeds = {(p.problem_id, 0): 0 for p in prompts}
    own = TransformersEngine(model, frozenset(engine.info.stop_ids), 1.0, 60.0)
    own.weight_version = version
    ours, theirs = ({s.problem_id: s for s in e.generate(prompts, Sampling(0.0, 48), seeds)} for e in (own, engine))
    same = all(ours[k].token_ids == theirs[k].token_ids and ours[k].finish == theirs[k].finish for k in ours)
    pairs = [(x, y) for k in ours for x, y in zip(ours[k].log_probs, theirs[k].log_probs, strict=False)]
    return same, max(abs(x - y) for x, y in pairs)


def gaps(model: PreTrainedModel, prompts: list[Prompt], samples: list[Sample], temperature: float) -> list[float]:
    """|engine - trainer| of every sampled token at a temperature, in nats."""
    ids = {p.problem_id: p.token_ids for p in prompts}
    found: list[float] = []
    for sample in samples:
        prompt = ids[sample.problem_id]
        ids_BT = torch.tensor([[*prompt, *sample.token_ids]])
        mask_BT = torch.arange(ids_BT.shape[1])[None] >= len(prompt)
        with torch.no_grad():
            trained_T = token_scores(model, ids_BT, mask_BT, temperature).log_probs_BT[mask_BT].tolist()
        found += [abs(x - y) for x, y in zip(trained_T, sample.log_probs, strict=True)]
    return found
