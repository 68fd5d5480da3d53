"""Numbers worked out by hand: GRPO and GSPO at the same band, and the rules of group advantages.

B = responses, T = token positions
"""

import math
from itertools import product
from typing import Any, Literal

import pytest
import torch
from oracle import ORACLES
from oracle_advantage import group_advantage as oracle_advantage
from torch import Tensor

from gspo_cli.algorithms import ALGORITHMS, LossInputs, LossOutput
from gspo_cli.algorithms.clip import Clip
from gspo_cli.algorithms.ops import group_advantage

NAN = math.nan
BAND = Clip(low=3e-4, high=4e-4)
# mean log-ratios 5e-4, -4e-4, 5e-4, -4e-4: outside (log(1 - 3e-4), log(1 + 4e-4)) = (-3.0005e-4, 3.9992e-4) each, but
# only the first (A > 0, above) and the second (A < 0, below) are clipped
LOG_RATIOS = [[1e-3, 0.0, NAN], [-6e-4, -6e-4, 0.0], [1e-3, 0.0, NAN], [-6e-4, -6e-4, 0.0]]
MASK = [[True, True, False], [True, True, True], [True, True, False], [True, True, True]]
ADVANTAGES = [1.0, -1.0, -1.0, 1.0]
OLD = [[-1.0, -2.0, NAN], [-0.5, -1.5, -2.5], [-1.0, -2.0, NAN], [-0.5, -1.5, -2.5]]
LOG_PROBS = [[o + x for o, x in zip(os, xs, strict=True)] for os, xs in zip(OLD, LOG_RATIOS, strict=True)]

# s = e^{5e-4}, e^{-4e-4}, same, same; J = (1.0004 - 0.9997 - s_3 + s_4) / 4
GSPO = {
    "J": -5.0011257875e-5, "weights": [[0, 0, 0], [0, 0, 0], [-0.1250625156, -0.1250625156, 0], [0.0833000067] * 3],
    "clipped": [[True, True, False], [True, True, True], [False] * 3, [False] * 3], "clip/seq_frac": (2, 4),
    "clip/seq_any_frac": (2, 4), "clip/token_frac": (5, 10), "clip/token_frac_active": (5, 10),
    "clip/low_frac": (3, 10), "clip/high_frac": (2, 10), "ratio/outside_frac": (10, 10),
}  # fmt: skip
# J = (1.0004 + 1)/8 - (2 * 0.9997 + 1)/12 - (e^{1e-3} + 1)/8 + (2 e^{-6e-4} + 1)/12
HIGH, LOW = math.exp(1e-3), math.exp(-6e-4)
GRPO = {
    "J": -1.2503252684e-4,
    "weights": [[0, 1 / 8, 0], [0, 0, -1 / 12], [-HIGH / 8, -1 / 8, 0], [LOW / 12, LOW / 12, 1 / 12]],
    "clipped": [[True, False, False], [True, True, False], [False] * 3, [False] * 3], "clip/seq_frac": (0, 4),
    "clip/seq_any_frac": (2, 4), "clip/token_frac": (3, 10), "clip/token_frac_active": (3, 10),
    "clip/low_frac": (2, 10), "clip/high_frac": (1, 10), "ratio/outside_frac": (6, 10),
}  # fmt: skip
FIXTURE = pytest.mark.parametrize(("name", "expected"), [("gspo", GSPO), ("grpo", GRPO)])


def loss_of(name: str) -> tuple[LossOutput, Tensor]:
    """The loss at the GSPO band, and autograd's dJ/dl."""
    algorithm = ALGORITHMS[name]
    log_probs_BT = torch.tensor(LOG_PROBS, dtype=torch.float64, requires_grad=True)
    old_BT, advantages_B = torch.tensor(OLD, dtype=torch.float64), torch.tensor(ADVANTAGES, dtype=torch.float64)
    inputs = LossInputs(log_probs_BT, old_BT, advantages_B, torch.tensor(MASK))
    output = algorithm.loss(inputs, algorithm.Params(clip=BAND))
    (gradient_BT,) = torch.autograd.grad(output.loss_numerator / output.denominator, log_probs_BT)
    return output, -gradient_BT


@FIXTURE
def test_value_and_weights(name: str, expected: dict[str, Any]) -> None:
    output, slope_BT = loss_of(name)
    assert output.denominator.item() == 4
    # J is a difference of numbers near 1, known to 11 digits
    assert -(output.loss_numerator / output.denominator).item() == pytest.approx(expected["J"], abs=1e-14)
    weights_BT = torch.tensor(expected["weights"], dtype=torch.float64)
    torch.testing.assert_close(slope_BT, weights_BT, rtol=0, atol=1e-10)
    torch.testing.assert_close(output.gradient_weight_BT / output.denominator, weights_BT, rtol=0, atol=1e-10)


@FIXTURE
def test_clips_are_reached_on_both_sides(name: str, expected: dict[str, Any]) -> None:
    output, slope_BT = loss_of(name)
    assert output.clipped_BT is not None
    assert output.clipped_BT.tolist() == expected["clipped"]
    assert (slope_BT == 0).tolist() == [
        [clipped or not is_loss for clipped, is_loss in zip(*rows, strict=True)]
        for rows in zip(expected["clipped"], MASK, strict=True)
    ]
    fractions = {metric: value for metric, value in expected.items() if "/" in metric}
    measured = {metric: output.metrics[metric] for metric in fractions}
    assert {metric: (int(x.numerator), int(x.denominator)) for metric, x in measured.items()} == fractions


def advantages(rewards: list[float], groups: list[int], scale: bool = True) -> list[float]:
    rewards_B = torch.tensor(rewards, dtype=torch.float64)
    return group_advantage(rewards_B, torch.tensor(groups), scale=scale).tolist()


def test_deviation_divides_by_n_minus_1() -> None:
    # 0, 0, 1, 1: mean 1/2, squares sum to 1, std = sqrt(1/3); 0, 3: mean 3/2, std = sqrt(4.5)
    expected = [-math.sqrt(3) / 2] * 2 + [math.sqrt(3) / 2] * 2 + [-math.sqrt(0.5), math.sqrt(0.5)]
    assert advantages([0, 0, 1, 1, 0, 3], [0, 0, 0, 0, 1, 1]) == pytest.approx(expected, rel=1e-6)


def test_groups_may_be_interleaved() -> None:
    expected = [-math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(0.5), math.sqrt(0.5)]
    assert advantages([0, 10, 1, 14], [0, 1, 0, 1]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("reward", [0.0, 0.1, 0.35, 1 / 3, 1e6, 1e6 + 0.1, -1e6 / 3])
def test_constant_rewards_give_exactly_0(reward: float) -> None:
    for num, scale in product((2, 3, 7, 8), (True, False)):
        assert advantages([reward] * num, [0] * num, scale) == [0.0] * num


@pytest.mark.parametrize("reward", [0.0, 0.1, 1e3, 1e6])
def test_a_small_spread_is_signal(reward: float) -> None:
    # 1e6 + 1e-3 - 1e6 is 1e-3 to seven digits, and the z-score of two values does not depend on their distance; in 1e6
    # the threshold 1e-9 * 1e6 is 1e-3 itself, hence 2e-3
    spread = 2e-3 if reward == 1e6 else 1e-3
    assert advantages([reward, reward + spread], [0, 0]) == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], rel=1e-5)


@pytest.mark.parametrize("spread", [0.9e-9, 1e-12])
def test_a_spread_of_rounding_errors_is_none(spread: float) -> None:
    assert advantages([0.5, 0.5 + spread], [0, 0]) == [0.0, 0.0]
    assert advantages([1e6, 1e6 * (1 + spread)], [0, 0]) == [0.0, 0.0]


def test_unscored_responses_leave_mean_and_deviation() -> None:
    # the others are 0 and 3 as above; a NaN counted as 0 or 1 would move them
    assert advantages([NAN, 0, NAN, 3], [0] * 4) == pytest.approx([0, -math.sqrt(0.5), 0, math.sqrt(0.5)], rel=1e-6)
    assert advantages([NAN, 0, NAN, 3], [0] * 4)[::2] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("scale", "divide"), [(True, "std"), (False, "nothing"), ("mean", "mean"), ("others", "others")]
)
def test_random_groups_against_the_oracle(scale: bool | Literal["mean", "others"], divide: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        num = int(torch.randint(1, 25, (1,), generator=generator))
        groups_B = torch.randint(0, 4, (num,), generator=generator)
        rewards_B = torch.randn(num, generator=generator, dtype=torch.float64) * 10 ** float(
            torch.randint(-3, 4, (1,), generator=generator)
        )
        rewards_B = torch.where(torch.rand(num, generator=generator) < 0.2, torch.nan, rewards_B)
        rewards_B = torch.where(groups_B == 3, 0.1, rewards_B)
        expected = oracle_advantage(rewards_B.tolist(), groups_B.tolist(), divide)
        actual = group_advantage(rewards_B, groups_B, scale=scale).tolist()
        # advantages are float32
        assert actual == pytest.approx(expected, rel=1e-6, abs=1e-7)
        assert [a == 0 for a in actual] == [a == 0 for a in expected]


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if ALGORITHMS[name].token_advantages is None])
def test_each_algorithm_uses_the_advantage_of_its_paper(name: str) -> None:
    rewards_B, groups_B = torch.tensor([0.0, 0.0, 1.0, 5.0], dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    expected = oracle_advantage(rewards_B.tolist(), groups_B.tolist(), ORACLES[name].divide)
    actual_B = ALGORITHMS[name].advantage(rewards_B, groups_B, ALGORITHMS[name].Params())
    assert actual_B.tolist() == pytest.approx(expected, rel=1e-6)
