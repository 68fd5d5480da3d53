"""The oracle against finite differences, identities and hand numbers, so that agreeing with it means something."""

from __future__ import annotations

import dataclasses
import math

import pytest
from cases import seeded_batches
from oracle import ORACLES
from oracle_advantage import gae, whitened
from oracle_batch import Batch, Grid
from oracle_modifiers import correction_weight, kl_penalty, value_loss

STEP = 1e-6


def moved(batch: Batch, i: int, t: int, by: float) -> Batch:
    log_probs = [list(row) for row in batch.log_probs]
    log_probs[i][t] += by
    return dataclasses.replace(batch, log_probs=log_probs)


@pytest.mark.parametrize("name", [name for name, oracle in ORACLES.items() if not oracle.detached])
def test_weight_is_the_slope_of_the_value(name: str) -> None:
    num_compared = 0
    for batch in seeded_batches(40, extreme=False):
        answer = ORACLES[name](batch)
        for i, positions in batch.responses():
            for t in positions:
                up, down = (ORACLES[name](moved(batch, i, t, by)) for by in (STEP, -STEP))
                if up.clipped == answer.clipped == down.clipped:
                    slope = -(up.numerator - down.numerator) / (2 * STEP)
                    assert slope == pytest.approx(answer.weight[i][t], rel=1e-6, abs=1e-7)
                    num_compared += 1
    assert num_compared > 300


@pytest.mark.parametrize("name", ["cispo", "minirl", "reinforce"])
def test_value_is_weight_times_log_prob(name: str) -> None:
    for batch in seeded_batches(40):
        answer = ORACLES[name](batch)
        terms = [answer.weight[i][t] * batch.log_probs[i][t] for i, positions in batch.responses() for t in positions]
        assert answer.numerator == pytest.approx(-math.fsum(terms), rel=1e-12, abs=1e-12)


def test_gae_skips_tool_tokens() -> None:
    # gamma 0.9, lam 0.5, loss tokens 0 and 2, reward 1:
    # A_2 = 1 - 0.4 = 0.6;  A_0 = 0.9 * 0.4 - 0.2 + 0.45 * 0.6 = 0.43
    nan = math.nan
    advantages, returns = gae([[0.2, nan, 0.4, nan]], [1.0], [[True, False, True, False]], gamma=0.9, lam=0.5)
    assert advantages[0] == pytest.approx([0.43, 0, 0.6, 0])
    assert returns[0] == pytest.approx([0.63, 0, 1.0, 0])


def test_gae_without_discount_is_reward_minus_value() -> None:
    advantages, returns = gae([[0.2, -0.3, 0.4]], [0.7], [[True] * 3], gamma=1, lam=1)
    assert advantages[0] == pytest.approx([0.5, 1.0, 0.3])
    assert returns[0] == pytest.approx([0.7] * 3)


def test_whitened_tokens_have_mean_0_and_deviation_1() -> None:
    # 1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, over n - 1: std = sqrt(7)
    rows = whitened([[1.0, math.nan, 2.0], [6.0, math.nan, math.nan]], [[True, False, True], [True, False, False]], 1)
    assert rows[0] == pytest.approx([-2 / math.sqrt(7), 0, -1 / math.sqrt(7)])
    assert rows[1] == pytest.approx([3 / math.sqrt(7), 0, 0])


@pytest.mark.parametrize(
    ("value", "numerator", "weight", "num_clipped"),
    [
        (0.1, 0.5 * 0.9**2, -0.9, 0),  # inside the range
        (0.3, 0.5 * 0.8**2, 0.0, 1),  # beyond it, and nearer to R = 1 than the bound 0.2: the bound's square is larger
        (-0.5, 0.5 * 1.5**2, -1.5, 0),  # beyond it on the far side: the plain square is larger
    ],
)
def test_value_loss_by_hand(value: float, numerator: float, weight: float, num_clipped: int) -> None:
    loss = value_loss([[value, math.nan]], [[0.0, math.nan]], [[1.0, math.nan]], [[True, False]], clip=0.2)
    assert loss.numerator == pytest.approx(numerator)
    assert loss.weight == [[pytest.approx(weight), 0.0]]
    assert (loss.denominator, loss.num_clipped) == (1, num_clipped)


# o - m = log 3, log 1.5, log 0.3 -> c = 3, 1.5, 0.3; geometric mean 1.35^(1/3) = 1.10521
OLD: Grid = [[math.log(3), math.log(1.5), math.nan, math.log(0.3)]]
SAMPLER: Grid = [[0.0, 0.0, math.nan, 0.0]]
MASK = [[True, True, False, True]]
MEAN = 1.35 ** (1 / 3)


@pytest.mark.parametrize(
    ("unit", "kind", "bounds", "expected"),
    [
        ("token", "none", None, [1, 1, 1, 1]),
        ("token", "tis", None, [2, 1.5, 1, 0.3]),
        ("token", "icepop", None, [3, 1.5, 1, 0]),
        ("token", "icepop", (0.2, 2.0), [0, 1.5, 1, 0.3]),
        ("token", "seq_mask", None, [0, 0, 1, 0]),
        ("token", "seq_mask", (0.9, 1.2), [1, 1, 1, 1]),
        ("sequence", "tis", None, [MEAN, MEAN, 1, MEAN]),
        ("sequence", "tis", (0.0, 1.1), [1.1, 1.1, 1, 1.1]),
        ("sequence", "icepop", None, [MEAN, MEAN, 1, MEAN]),
        ("sequence", "icepop", (1.2, 5.0), [0, 0, 1, 0]),
        ("sequence", "seq_mask", None, [0, 0, 1, 0]),
    ],
)
def test_corrections_by_hand(unit: str, kind: str, bounds: tuple[float, float] | None, expected: list[float]) -> None:
    assert correction_weight(OLD, SAMPLER, MASK, unit, kind, bounds)[0] == pytest.approx(expected)


def test_kl_by_hand() -> None:
    # l - ref = log 2: k1 = log 2, k3 = 1/2 + log 2 - 1; slopes log 2 (not 1: that has no expected gradient) and 1 - 1/2
    log_probs, ref = [[math.log(2), math.nan, 0.0]], [[0.0, math.nan, 0.0]]
    mask = [[True, False, True]]
    k1 = kl_penalty(log_probs, ref, mask, "k1", "mean", "N")
    k3 = kl_penalty(log_probs, ref, mask, "k3", "sum", "T")
    assert (k1.numerator, k1.denominator) == (pytest.approx(math.log(2) / 2), 1)
    assert (k3.numerator, k3.denominator) == (pytest.approx(math.log(2) - 0.5), 2)
    assert k1.weight[0] == pytest.approx([math.log(2) / 2, 0, 0])
    assert k3.weight[0] == pytest.approx([0.5, 0, 0])


def test_kl_gradients_are_those_of_the_two_divergences() -> None:
    # a softmax over three tokens: d l_a / d z_b = [a == b] - p_b; expectations over p are exact sums
    p, q = (0.5, 0.3, 0.2), (0.2, 0.2, 0.6)
    ref = [[math.log(x)] for x in q]
    reverse = math.fsum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
    for estimator in ("k1", "k3"):
        penalty = kl_penalty([[math.log(x)] for x in p], ref, [[True]] * 3, estimator, "sum", "T")
        for b in range(3):
            expected = math.fsum(p[a] * penalty.weight[a][0] * ((a == b) - p[b]) for a in range(3))
            # d KL(p||q) / d z_b = p_b (log(p_b / q_b) - KL);  d KL(q||p) / d z_b = p_b - q_b
            slope = {"k1": p[b] * (math.log(p[b] / q[b]) - reverse), "k3": p[b] - q[b]}[estimator]
            assert expected == pytest.approx(slope, abs=1e-12)
