"""What a rollout batch is measured by, against plain Python."""

from dataclasses import replace
from math import exp
from statistics import fmean, stdev

import pytest
import torch
from test_batches import CPU, rollout_batch

from gspo_cli.training.step.batches import Batching, make_mini_batches
from gspo_cli.training.step.metrics import Accumulator
from gspo_cli.training.step.rollout_metrics import mismatch_metrics, rollout_metrics
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
        [0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5], [1, 0, None, 0],
    ]  # fmt: skip
    batch = scored(rewards)
    advantages = torch.tensor([1.0, -1, 0, 0] * 5)
    metrics = Accumulator()
    metrics.add(rollout_metrics(batch, advantages))
    line = metrics.result()
    known = [v for group in rewards for v in group if v is not None]
    lengths = [len(s.token_ids) for g in batch.groups for s in g.samples]
    expected = {
        "reward/mean": fmean(known), "reward/std": stdev(known),
        "reward/group_std": (stdev([0, 1, 1, 0]) + stdev([1, 0, 0])) / 5, "group/zero_std_frac": 3 / 5,
        "group/all_best_frac": 1 / 5, "group/all_worst_frac": 1 / 5, "group/dropped_frac": 0.0, "adv/abs_mean": 0.5,
        "adv/abs_max": 1.0, "length/mean": fmean(lengths), "length/std": stdev(lengths), "length/max": max(lengths),
        "length/mean_pos": fmean(lengths[0::4]), "length/mean_neg": fmean(lengths[1::4]), "length/truncated_frac": 0.0,
    }  # fmt: skip
    assert {name: line.values[name] for name in expected} == pytest.approx(expected)
    assert line.counts["reward/mean"] == 19 and line.counts["length/mean_pos"] == 5


def test_the_engine_against_the_trainer() -> None:
    """m = o - 0.002 * (position in the response + 1), so a response of n tokens has the mean gap 0.001 * (n + 1)."""
    batch = rollout_batch()
    advantages = torch.ones(sum(len(g.samples) for g in batch.groups))
    minis = make_mini_batches(batch, advantages, Batching(2, 10_000), CPU)
    gaps: list[list[float]] = []
    for micro in (m for mini in minis for m in mini.micro_batches):
        place_BT = micro.mask_BT.cumsum(-1)
        micro.trainer_log_probs_BT = micro.sampler_log_probs_BT + 0.002 * place_BT
        gaps += [[0.002 * (i + 1) for i in range(int(row.sum()))] for row in micro.mask_BT]
    metrics = Accumulator()
    metrics.add(mismatch_metrics(minis, (-0.003, 0.004)))
    found = metrics.result().values
    tokens, rows = [g for row in gaps for g in row], [fmean(row) for row in gaps]
    floor = fmean(x * x for x in rows) ** 0.5
    for name, expected in {
        "kl/sampler_trainer_k1": -fmean(tokens),
        "kl/sampler_trainer_k3": fmean(exp(g) - 1 - g for g in tokens),
        "mismatch/floor": floor,
        "mismatch/floor_of_band": floor / 0.003,
        "mismatch/floor_mean": fmean(rows),
        "mismatch/floor_std": stdev(rows),
        "mismatch/token_floor": fmean(g * g for g in tokens) ** 0.5,
        "mismatch/outside_band_frac": fmean(not -0.003 <= x <= 0.004 for x in rows),
    }.items():
        assert found[name] == pytest.approx(expected, rel=1e-3), name
    assert 0 < (found["mismatch/outside_band_frac"] or 0) < 1


def test_the_mean_reward_counts_the_groups_that_were_put_aside() -> None:
    kept, aside = scored([[0, 1, 1, 0], [1, 0, None, 0]]), scored([[1, 1, 1, 1], [1, 1, None, 1], [0, 0, 0, 0]])
    metrics = Accumulator()
    metrics.add(rollout_metrics(replace(kept, dropped=aside.groups), torch.ones(8), dynamic_sampling=True))
    line = metrics.result()
    assert line.values["reward/mean"] == pytest.approx((3 + 7) / (7 + 11)) and line.counts["reward/mean"] == 18
    assert line.values["reward/mean_kept"] == pytest.approx(3 / 7) and line.counts["reward/mean_kept"] == 7
    assert "reward/mean_kept" not in rollout_metrics(kept, torch.ones(8))
