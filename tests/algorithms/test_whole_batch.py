"""Advantages that a whole rollout batch decides on, against the oracle: whitening, and GDPO's several rewards."""

import math
from random import Random
from typing import Any

import pytest
from oracle_advantage import group_advantage, whitened

from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.config import Recipe
from gspo_cli.training.step.batches import advantages_of
from gspo_cli.types import Group, Problem, Prompt, RolloutBatch, Sample, Score

WEIGHTS = (2.0, 1.0)


def rollout_batch(seed: int) -> RolloutBatch:
    """Groups of four ragged responses with two rewards, the second a small one; some without a reward, some cut off."""
    rng, groups = Random(seed), []
    for p in range(5):
        samples, scores = [], []
        for i in range(4):
            ids = tuple(range(rng.randint(1, 9)))
            finish = rng.choice(("stop", "stop", "stop", "length"))
            samples.append(Sample(str(p), i, 0, ids, (-1.0,) * len(ids), finish, 0))
            parts = (("a", float(rng.randint(0, 1))), ("b", 0.01 * rng.random()))
            total = None if rng.random() < 0.15 else sum(w * x for w, (_, x) in zip(WEIGHTS, parts, strict=True))
            scores.append(Score(total, "", parts))
        groups.append(Group(Problem(str(p), "", ""), Prompt(str(p), (1,)), tuple(samples), ("",) * 4, tuple(scores)))
    return RolloutBatch(1, tuple(groups), max_new_tokens=9)


def recipe(**tables: Any) -> Recipe:
    return Recipe.model_validate({"name": "t", "model": {"tiny": {}}} | tables)


def expected(batch: RolloutBatch, advantages: list[float], masks_truncated: bool = False) -> list[float]:
    """Whitened over the loss tokens of the batch."""
    rows = [(x, s) for g in batch.groups for x, s in zip(g.samples, g.scores, strict=True)]
    counted = [s.value is not None and not (masks_truncated and x.finish == "length") for x, s in rows]
    mask = [[is_counted] * len(x.token_ids) for is_counted, (x, _) in zip(counted, rows, strict=True)]
    grid = [[a] * len(row) for a, row in zip(advantages, mask, strict=True)]
    return [row[0] for row in whitened(grid, mask, ddof=1)]


@pytest.mark.parametrize("group_baseline", [True, False])
@pytest.mark.parametrize("truncation", ["keep", "mask"])
def test_reinforce_pp_whitens_over_the_tokens_of_the_batch(group_baseline: bool, truncation: str) -> None:
    spec = ALGORITHMS["reinforce_pp"]
    for seed in range(20):
        batch = rollout_batch(seed)
        rewards = [math.nan if s.value is None else s.value for g in batch.groups for s in g.scores]
        plain = group_advantage(rewards, [i for i in range(5) for _ in range(4)], "nothing")
        plain = plain if group_baseline else [0.0 if math.isnan(r) else r for r in rewards]
        params = spec.Params(group_baseline=group_baseline)
        found = advantages_of(batch, recipe(algo={"truncation": truncation}), spec, params).tolist()
        assert found == pytest.approx(expected(batch, plain, truncation == "mask"), rel=1e-5, abs=1e-6)


def test_gdpo_divides_each_reward_by_its_own_deviation() -> None:
    rewards = [{"name": f"x:{name}", "weight": weight} for name, weight in zip("ab", WEIGHTS, strict=True)]
    gdpo = recipe(task={"rewards": rewards, "combine": "gdpo"})
    for seed in range(20):
        batch, sums = rollout_batch(seed), [0.0] * 20
        for index, weight in enumerate(WEIGHTS):
            part = [math.nan if s.value is None else s.parts[index][1] or 0.0 for g in batch.groups for s in g.scores]
            single = group_advantage(part, [i for i in range(5) for _ in range(4)])
            sums = [total + weight * a for total, a in zip(sums, single, strict=True)]
        for name in ("grpo", "dr_grpo"):
            found = advantages_of(batch, gdpo, ALGORITHMS[name], ALGORITHMS[name].Params()).tolist()
            assert found == pytest.approx(expected(batch, sums), rel=1e-5, abs=1e-6)
