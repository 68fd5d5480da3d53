"""Counting arithmetic: active parameters and the passes that are made."""

import copy
from dataclasses import replace

import torch
from test_batches import CPU, learner, rollout_batch
from transformers import PreTrainedModel

from gspo_cli.config import AlgoConfig
from gspo_cli.moe.routers import active_parameters
from gspo_cli.training.record import batch_flops, num_unpadded_tokens
from gspo_cli.training.step.batches import Batching, make_mini_batches


def test_active_parameters(tiny_moe: PreTrainedModel, tiny_dense: PreTrainedModel) -> None:
    assert active_parameters(tiny_dense) == sum(
        p.numel() for p in tiny_dense.parameters()
    )  # tied: the embedding is the head
    experts = sum(p.numel() for n, p in tiny_moe.named_parameters() if ".experts." in n)
    everything = sum(p.numel() for p in tiny_moe.parameters())
    assert active_parameters(tiny_moe) == everything - experts * (6 - 2) // 6


def test_flops_count_the_passes_that_are_made(tiny_dense: PreTrainedModel) -> None:
    batch, who = rollout_batch(2), learner(tiny_dense, "grpo")
    advantages = torch.tensor([1.0, -1, 0, 0, 1, -1, 1, -1])
    parts = make_mini_batches(batch, advantages, Batching(2, 20), CPU)
    passes = [num_unpadded_tokens(part.own) for part in parts]
    rows = [len(g.prompt.token_ids) + len(s.token_ids) for g in batch.groups for s in g.samples]
    sampled = sum(len(g.prompt.token_ids) + sum(len(s.token_ids) for s in g.samples) for g in batch.groups)
    trained = sum(n for n, a in zip(rows, advantages, strict=True) if a != 0)
    old = sum(rows[4:])
    size = active_parameters(who.model)
    assert batch_flops(who, batch, passes) == size * (2 * (sampled + old) + 6 * trained)
    cheaper = replace(who, algo=AlgoConfig(old_log_probs="sampler"))
    assert batch_flops(cheaper, batch, passes) == size * (2 * sampled + 6 * trained)
    watched = replace(who, reference=copy.deepcopy(who.model))
    assert batch_flops(watched, batch, passes) == size * (2 * (sampled + old + trained) + 6 * trained)
    dropped = replace(batch, dropped=batch.groups[:1])
    extra = len(batch.groups[0].prompt.token_ids) + sum(len(s.token_ids) for s in batch.groups[0].samples)
    assert batch_flops(who, dropped, passes) - batch_flops(who, batch, passes) == 2 * size * extra
