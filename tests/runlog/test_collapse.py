"""The collapse rule: the last tenth against the best tenth, in units of spread, of noise and of the reward."""

from collections.abc import Sequence

import pytest

from gspo_cli.config import CollapseRule
from gspo_cli.runlog.collapse import (
    BatchReward,
    RewardHistory,
    batch_error,
    batch_reward,
    collapse_window,
    has_collapsed,
)


def batches(means: Sequence[float], std: float = 0.4, error: float = 0.02) -> list[BatchReward]:
    return [BatchReward(mean, std, error) for mean in means]


def test_a_tenth_of_the_plan() -> None:
    assert [collapse_window(n) for n in (1, 5, 9, 10, 11, 20, 25, 60, 100)] == [1, 1, 1, 1, 2, 2, 3, 6, 10]
    # the steps above 0.9 x planned, as `last10` takes them
    assert all(collapse_window(n) == sum(10 * step > 9 * n for step in range(1, n + 1)) for n in range(1, 300))


def test_half_a_standard_deviation_below_the_best_tenth() -> None:
    assert has_collapsed(batches([0.5, 0.5, 0.6, 0.6, 0.4, 0.4]), 2)  # 0.2 lower: half of 0.4
    assert not has_collapsed(batches([0.5, 0.5, 0.6, 0.6, 0.41, 0.41]), 2)
    assert not has_collapsed(batches([0.6, 0.6, 0.1, 0.1, 0.5, 0.5]), 2)  # it came back
    assert has_collapsed(batches([0.4, 0.1]), 1) and not has_collapsed(batches([0.1, 0.4]), 1)
    assert not has_collapsed(batches([0.9]), 2) and not has_collapsed([], 1)


def test_the_scale_is_the_widest_spread_that_the_run_had() -> None:
    # all rewards equal at the end: their spread is 0, and 0.45 is still the scale of this reward
    fallen = [BatchReward(0.7, 0.45, 0.02)] * 4 + [BatchReward(0.5, 0.0, 0.0)] * 2
    assert not has_collapsed(fallen, 2) and has_collapsed(fallen[:4] + [BatchReward(0.4, 0.0, 0.0)] * 2, 2)


def test_a_fall_within_the_noise_is_none() -> None:
    # 3.5 standard errors of a difference of two means over 2 batches: 3.5 * 0.1 * sqrt(2 / 2) = 0.35
    assert not has_collapsed(batches([0.6, 0.6, 0.26, 0.26], error=0.1), 2)
    assert has_collapsed(batches([0.6, 0.6, 0.24, 0.24], error=0.1), 2)
    assert has_collapsed(batches([0.6, 0.6, 0.26, 0.26], error=0.1), 2, CollapseRule(noise=3.3))


@pytest.mark.parametrize("shift", [-1.0, -0.3, 5.0, 1000.0])
def test_a_shifted_reward_collapses_at_the_same_step(shift: float) -> None:
    means = [0.3, 0.5, 0.6, 0.62, 0.6, 0.5, 0.41, 0.38, 0.35, 0.5, 0.6]

    def now(shift: float) -> list[bool]:
        history = RewardHistory(1)
        return [history.add(batch) for batch in batches([mean + shift for mean in means])]

    assert now(shift) == now(0.0) and now(0.0).index(True) == 6


def test_the_error_of_a_batch_follows_from_its_spread() -> None:
    # variance 0.16 in all, 0.04 within prompts: (0.12 + 0.04 / 4) / 8 = 0.01625
    assert batch_error(0.4, 0.2, prompts=8, samples=4) == pytest.approx(0.01625**0.5)
    assert batch_error(0.4, 0.5, prompts=8, samples=4) == pytest.approx((0.25 / 32) ** 0.5)  # nothing between prompts
    assert batch_reward(0.5, None, 0.1, 8, 4) == BatchReward(0.5)
    assert batch_reward(0.5, float("nan"), 0.1, 8, 4) == BatchReward(0.5)
    assert batch_reward(0.5, 0.4, None, 8, 4) == BatchReward(0.5, 0.4)


def test_without_a_known_spread_there_is_no_verdict() -> None:
    assert not has_collapsed([BatchReward(0.9)] * 5 + [BatchReward(0.0)] * 5, 1)
    known = batches([0.9] * 5) + [BatchReward(0.0)] * 5
    assert has_collapsed(known, 1)


def test_the_recipe_fixes_the_thresholds() -> None:
    rewards = batches([0.6, 0.6, 0.4, 0.4])
    assert has_collapsed(rewards, 2)
    assert not has_collapsed(rewards, 2, CollapseRule(below=0.7))
    assert not has_collapsed(rewards, 2, CollapseRule(least=0.3))
    anything = CollapseRule(below=0, least=0, noise=0)
    assert has_collapsed(batches([0.6, 0.59]), 1, anything) and not has_collapsed(batches([0.6, 0.6]), 1, anything)


def test_online_it_is_seen_when_it_happens() -> None:
    history = RewardHistory(2)
    now = [history.add(batch) for batch in batches([0.6] * 10 + [0.1] * 5)]
    assert now.index(True) == 10 and all(now[10:])  # the window's mean is 0.35
    # a dip that recovers happened, but is no collapsed run
    dip = [0.6] * 5 + [0.1] * 5 + [0.6] * 5
    history = RewardHistory(2)
    now = [history.add(batch) for batch in batches(dip)]
    assert now.index(True) == 5 and not now[-1]
