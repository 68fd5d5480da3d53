"""What a rollout batch is measured by, against plain Python."""

from dataclasses import replace
from statistics import fmean, stdev

import pytest
import torch
from test_batches import rollout_batch

from gspo_cli.training.accumulate import Accumulator
from gspo_cli.training.rollout_metrics import rollout_metrics
from gspo_cli.types import RolloutBatch, Score


def scored(rewards: list[list[float | None]]) -> RolloutBatch:
    """A batch with these rewards, group by group."""
    batch = rollout_batch(len(rewards), len(rewards[0]))
    groups = [
        replace(g, scores=tuple(Score(v, "") for v in values)) for g, values in zip(batch.groups, rewards, strict=True)
    ]
    return replace(batch, groups=tuple(groups))


def test_against_plain_python() -> None:
    rewards: list[list[float | None]] = [
        [0, 1, 1, 0],
        [1, 1, 1, 1],
        [0, 0, 0, 0],
        [0.5, 0.5, 0.5, 0.5],
        [1, 0, None, 0],
    ]
    batch = scored(rewards)
    advantages = torch.tensor([1.0, -1, 0, 0] * 5)
    metrics = Accumulator()
    metrics.add(rollout_metrics(batch, advantages))
    line = metrics.result()
    known = [v for group in rewards for v in group if v is not None]
    lengths = [len(s.token_ids) for g in batch.groups for s in g.samples]
    expected = {
        "reward/mean": fmean(known),
        "reward/std": stdev(known),
        "reward/group_std": (stdev([0, 1, 1, 0]) + stdev([1, 0, 0])) / 5,
        "group/zero_std_frac": 3 / 5,
        "group/all_best_frac": 1 / 5,
        "group/all_worst_frac": 1 / 5,
        "group/dropped_frac": 0.0,
        "adv/abs_mean": 0.5,
        "adv/abs_max": 1.0,
        "length/mean": fmean(lengths),
        "length/std": stdev(lengths),
        "length/max": max(lengths),
        "length/mean_pos": fmean(lengths[0::4]),
        "length/mean_neg": fmean(lengths[1::4]),
        "length/truncated_frac": 0.0,
    }
    assert line.values == pytest.approx(expected)
    assert line.counts["reward/mean"] == 19 and line.counts["length/mean_pos"] == 5
