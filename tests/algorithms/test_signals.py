"""Properties of what a policy is pushed by: group advantages, advantages from a critic, KL penalties, corrections.

B = responses, T = token positions, V = vocabulary
"""

import math

import pytest
import torch
from hypothesis import given
from tensors import SEEDS, drawn, same

from gspo_cli.algorithms import ppo
from gspo_cli.algorithms.correction import BOUNDS, Kind, correction_metrics, correction_weight, off_policy_mask
from gspo_cli.algorithms.critic import gae, value_loss, whiten
from gspo_cli.algorithms.kl import Estimator, kl_metrics, kl_terms
from gspo_cli.algorithms.ops import group_advantage
from gspo_cli.types import Mean, Reduced

NAN = math.nan


def value(metric: Reduced) -> float:
    assert isinstance(metric, Mean)
    return float(metric.numerator) / float(metric.denominator)


@pytest.mark.parametrize("num", [2, 5, 8, 64])
def test_no_group_is_a_thousandth_short_of_its_deviation(num: int) -> None:
    # an epsilon of 1e-4 beside a deviation of 1e-3 would shrink every advantage by a tenth
    rewards_B = torch.linspace(0, 1e-3, num, dtype=torch.float64)
    advantages_B = group_advantage(rewards_B, torch.zeros(num, dtype=torch.int64)).double()
    assert float(advantages_B.std()) == pytest.approx(1, rel=1e-6)


def test_gae_by_hand() -> None:
    # gamma 0.9, lam 0.5, loss tokens 0 and 2, reward 1 on the last one (the prompt and a tool's token are passed over):
    # A_2 = 1 - 0.4 = 0.6;  A_0 = 0.9 * 0.4 - 0.2 + 0.45 * 0.6 = 0.43;  R = A + V
    values_BT = torch.tensor([[NAN, 0.2, NAN, 0.4, NAN]], dtype=torch.float64)
    mask_BT = torch.tensor([[False, True, False, True, False]])
    advantages_BT, returns_BT = gae(torch.ones(1, dtype=torch.float64), values_BT, mask_BT, gamma=0.9, lam=0.5)
    assert advantages_BT[0].tolist() == pytest.approx([0, 0.43, 0, 0.6, 0], rel=1e-12)
    assert returns_BT[0].tolist() == pytest.approx([0, 0.63, 0, 1.0, 0], rel=1e-12)


@drawn
@given(seed=SEEDS)
def test_ppos_advantages_are_whitened_gae(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    values_BT, rewards_B = torch.randn(4, 6, generator=g, dtype=torch.float64), torch.randn(4, generator=g).double()
    mask_BT = torch.rand(4, 6, generator=g) < 0.6
    mask_BT[0, :2] = True
    params = ppo.Params(gamma=0.9, lam=0.5)
    plain_BT, expected_BT = gae(rewards_B, values_BT, mask_BT, 0.9, 0.5)
    advantages_BT, returns_BT = ppo.token_advantages(rewards_B, values_BT, mask_BT, params)
    same(returns_BT, expected_BT)
    same(advantages_BT, whiten(plain_BT, mask_BT))
    tokens = advantages_BT[mask_BT]
    same(tokens.mean(), torch.zeros((), dtype=torch.float64))
    same(tokens.std(), torch.ones((), dtype=torch.float64))
    assert (advantages_BT[~mask_BT] == 0).all()


def test_whitening_knows_a_constant() -> None:
    values_BT, mask_BT = torch.full((2, 3), 0.1), torch.tensor([[True, True, False], [True, False, False]])
    assert (whiten(values_BT, mask_BT) == 0).all()
    assert (whiten(values_BT, mask_BT & (torch.arange(6).view(2, 3) == 0)) == 0).all()


def test_an_unscored_response_is_worth_0_to_a_critic() -> None:
    rewards_B = torch.tensor([0.5, NAN], dtype=torch.float64)
    assert ppo.advantage(rewards_B, torch.zeros(2, dtype=torch.int64), ppo.Params()).tolist() == [0.5, 0.0]


@pytest.mark.parametrize(
    ("v", "expected", "slope"),
    [
        (0.1, 0.5 * 0.9**2, -0.9),  # inside the range
        (0.3, 0.5 * 0.8**2, 0.0),  # beyond it, and nearer to R = 1 than the bound 0.2: the bound's square is larger
        (-0.5, 0.5 * 1.5**2, -1.5),  # beyond it on the far side: the plain square is larger
    ],
)
def test_value_loss_by_hand(v: float, expected: float, slope: float) -> None:
    values_BT = torch.tensor([[v, NAN]], dtype=torch.float64, requires_grad=True)
    old_BT = torch.tensor([[0.0, NAN]], dtype=torch.float64)
    returns_BT = torch.tensor([[1.0, NAN]], dtype=torch.float64)
    mask_BT = torch.tensor([[True, False]])
    numerator, denominator, metrics = value_loss(values_BT, old_BT, returns_BT, mask_BT, 0.2)
    (gradient_BT,) = torch.autograd.grad(numerator, values_BT)
    assert float(numerator.detach()) == pytest.approx(expected, rel=1e-12)
    assert gradient_BT[0].tolist() == pytest.approx([slope, 0.0], rel=1e-12)
    assert int(denominator) == 1
    assert value(metrics["value/loss"]) == pytest.approx(expected, rel=1e-12)
    assert value(metrics["value/clip_frac"]) == (slope == 0)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
@drawn
@given(seed=SEEDS)
def test_expected_kl_gradients_are_those_of_the_two_divergences(estimator: Estimator, seed: int) -> None:
    # expectation over a vocabulary of 5, exactly: sum_v p_v * (estimator's gradient at v). k1 gives the gradient of
    # KL(pi || ref) and k3 that of KL(ref || pi), with respect to the logits
    g = torch.Generator().manual_seed(seed)
    logits_V = torch.randn(5, generator=g, dtype=torch.float64, requires_grad=True)
    ref_V = torch.log_softmax(torch.randn(5, generator=g, dtype=torch.float64), -1)
    log_probs_V = torch.log_softmax(logits_V, -1)
    terms_V = kl_terms(log_probs_V[None], ref_V[None], torch.ones(1, 5, dtype=torch.bool), estimator)[0]
    (estimated_V,) = torch.autograd.grad((log_probs_V.exp().detach() * terms_V).sum(), logits_V, retain_graph=True)
    if estimator == "k1":
        divergence = (log_probs_V.exp() * (log_probs_V - ref_V)).sum()
        expected_value = (log_probs_V.exp() * terms_V).sum()
    else:
        divergence = (ref_V.exp() * (ref_V - log_probs_V)).sum()
        expected_value = (log_probs_V.exp() * (log_probs_V - ref_V)).sum()
        # k3's own mean is KL(pi || ref) all the same
        same((log_probs_V.exp() * terms_V).sum().detach(), expected_value.detach())
    (slope_V,) = torch.autograd.grad(divergence, logits_V)
    same(estimated_V, slope_V)


def test_kl_by_hand() -> None:
    # l - ref = log 2: k1 = log 2, k3 = 1/2 + log 2 - 1; the other token is where the reference is
    log_probs_BT = torch.tensor([[math.log(2), NAN, 0.0]], dtype=torch.float64)
    ref_BT, mask_BT = torch.tensor([[0.0, NAN, 0.0]], dtype=torch.float64), torch.tensor([[True, False, True]])
    assert kl_terms(log_probs_BT, ref_BT, mask_BT, "k1")[0].tolist() == pytest.approx([math.log(2), 0, 0])
    assert kl_terms(log_probs_BT, ref_BT, mask_BT, "k3")[0].tolist() == pytest.approx([math.log(2) - 0.5, 0, 0])
    metrics = kl_metrics(log_probs_BT, ref_BT, mask_BT)
    assert value(metrics["kl/ref_k1"]) == pytest.approx(math.log(2) / 2)
    assert value(metrics["kl/ref_k3"]) == pytest.approx((math.log(2) - 0.5) / 2)


# o - m = log 3, log 1.5, (outside), log 0.3: c = 3, 1.5, 0.3, geometric mean 1.35^(1/3) = 1.10521
OLD_BT = torch.tensor([[math.log(3), math.log(1.5), NAN, math.log(0.3)]], dtype=torch.float64)
SAMPLER_BT = torch.tensor([[0.0, 0.0, NAN, 0.0]], dtype=torch.float64)
MASK_BT = torch.tensor([[True, True, False, True]])
MEAN = 1.35 ** (1 / 3)


@pytest.mark.parametrize(
    ("unit", "kind", "bounds", "expected", "capped", "kept"),
    [
        ("token", "tis", None, [2, 1.5, 0.3], 1, 3), ("token", "icepop", None, [3, 1.5, 0], 0, 2),
        ("token", "icepop", (0.2, 2.0), [0, 1.5, 0.3], 0, 2), ("token", "seq_mask", None, [0, 0, 0], 0, 0),
        ("token", "seq_mask", (0.9, 1.2), [1, 1, 1], 0, 3), ("token", "seq_mask_tis", None, [0, 0, 0], 0, 0),
        ("token", "seq_mask_tis", (0.9, 1.2), [3, 1.5, 0.3], 0, 3), ("token", "seq_tis", None, [1.35] * 3, 0, 3),
        ("sequence", "seq_tis", (0.0, 1.3), [1.3] * 3, 3, 3),
        ("sequence", "seq_mask_tis", (0.9, 1.2), [MEAN] * 3, 0, 3), ("sequence", "tis", None, [MEAN] * 3, 0, 3),
        ("sequence", "tis", (0.0, 1.1), [1.1] * 3, 3, 3), ("sequence", "icepop", None, [MEAN] * 3, 0, 3),
        ("sequence", "icepop", (1.2, 5.0), [0] * 3, 0, 0), ("sequence", "seq_mask", (1.11, 1.2), [0] * 3, 0, 0),
    ],
)  # fmt: skip
def test_corrections_by_hand(
    unit: str, kind: Kind, bounds: tuple[float, float] | None, expected: list[float], capped: int, kept: int
) -> None:
    limits = bounds or BOUNDS[kind]
    weights = correction_weight(OLD_BT, SAMPLER_BT, MASK_BT, unit, kind, limits)  # type: ignore[arg-type]
    weights_BT = (weights if weights.dim() == 2 else weights[:, None]).expand_as(MASK_BT)
    assert weights_BT[MASK_BT].tolist() == pytest.approx(expected, rel=1e-12)
    metrics = correction_metrics(weights, MASK_BT, kind, limits)
    assert value(metrics["correction/weight_mean"]) == pytest.approx(sum(expected) / 3, rel=1e-12)
    assert value(metrics["correction/capped_frac"]) == capped / 3
    assert value(metrics["correction/kept_token_frac"]) == kept / 3
    assert value(metrics["correction/kept_seq_frac"]) == (kept > 0)


def test_opsm_by_hand() -> None:
    # mean of m - l: -log(1.35) / 3 = -0.100 as OLD_BT is above the sampler's; turned over it is +0.100
    away = MASK_BT.expand(4, 4), torch.tensor([1.0, -1.0, 0.0, -1.0])
    sampler_BT, policy_BT = OLD_BT.expand(4, 4), SAMPLER_BT.expand(4, 4).clone()
    policy_BT[3] = OLD_BT[0]
    for delta, kept in ((0.09, [1, 0, 1, 1]), (0.11, [1, 1, 1, 1])):
        assert off_policy_mask(policy_BT, sampler_BT, away[1], away[0], delta).tolist() == kept
    assert off_policy_mask(sampler_BT, policy_BT, away[1], away[0], 0.0).tolist() == [1, 1, 1, 1]
    by_token = off_policy_mask(policy_BT[:1], sampler_BT[:1], torch.tensor([[1.0, -1.0, -1.0, 0.0]]), MASK_BT, 0.09)
    assert by_token.tolist() == [[1, 0, 0, 1]]
