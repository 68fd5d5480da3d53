"""Hand numbers of the algorithms of 2025 and 2026, and their parity with the frameworks that have them.

The second part needs TRL (`trl`) or verl (`verl`) in this environment and is skipped without.

B = responses, T = token positions
"""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensors import Case, one_token, random_case, run, same
from torch import Tensor

from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.algorithms.correction import off_policy_mask


def case(now: list[list[float]], old: list[list[float]], advantages: list[float]) -> Case:
    """Probabilities of full rows."""
    now_BT, old_BT = (torch.tensor(x, dtype=torch.float64).log() for x in (now, old))
    return Case(now_BT, old_BT, torch.tensor(advantages, dtype=torch.float64), torch.ones_like(now_BT).bool())


def weights(name: str, one: Case, **settings: Any) -> list[list[float]]:
    """denominator * dJ/dl, by autograd."""
    result = run(name, one, ALGORITHMS[name].Params(**settings))
    return (result.gradient_BT * result.output.denominator).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "now", "old", "advantage", "weight"),
    [
        # TV: 0.36 - 0.2 = 0.16 > 0.15 is dropped for A > 0 alone; w = 1.8
        ("dppo_tv", 0.36, 0.20, 1.0, 0.0),
        ("dppo_tv", 0.36, 0.20, -1.0, -1.8),
        ("dppo_tv", 0.20, 0.36, -2.0, 0.0),
        ("dppo_tv", 0.20, 0.36, 2.0, 2 * 0.2 / 0.36),
        # a rare token may multiply its probability by 100, at weight 20 at most
        ("dppo_tv", 0.10, 0.001, 1.0, 20.0),
        # KL: 0.5 log(0.5/0.65) + 0.5 log(0.5/0.35) = 0.04715 < 0.05; with 0.66: 0.05409 > 0.05
        ("dppo_kl", 0.65, 0.50, 1.0, 1.3),
        ("dppo_kl", 0.66, 0.50, 1.0, 0.0),
        ("dppo_kl", 0.66, 0.50, -1.0, -1.32),
        # IPO: beyond 0.1 either way the pull alone is left, -2 kl_tau log w
        ("ipo", 0.55, 0.50, 2.0, 2.2 - 2e-3 * math.log(1.1)),
        ("ipo", 0.65, 0.50, -1.0, -2e-3 * math.log(1.3)),
        ("ipo", 0.35, 0.50, 1.0, -2e-3 * math.log(0.7)),
        # ASPO: 1/w for A > 0, at most 3; w > 1.2 is clipped; w for A < 0
        ("aspo", 0.40, 0.50, 1.0, 1.25),
        ("aspo", 0.10, 0.50, 1.0, 3.0),
        ("aspo", 0.65, 0.50, 1.0, 0.0),
        ("aspo", 0.45, 0.50, -1.0, -0.9),
        ("aspo", 0.90, 0.10, -1.0, -3.0),
    ],
)
def test_one_token_by_hand(name: str, now: float, old: float, advantage: float, weight: float) -> None:
    assert weights(name, case([[now]], [[old]], [advantage]))[0] == pytest.approx([weight], rel=1e-9, abs=1e-12)


def test_vespo_by_hand() -> None:
    # W = 2 * 1.5 = 3 and (1/2)(2/3) = 1/3: phi = W^2 e^{3 (1 - W)} for A > 0, W^3 e^{2 (1 - W)} for A < 0
    rows = case([[0.4, 0.6], [0.2, 0.4], [0.4, 0.6], [0.2, 0.4]], [[0.2, 0.4], [0.4, 0.6]] * 2, [1, 1, -2, -2])
    phi = [9 * math.exp(-6), math.exp(2) / 9, 27 * math.exp(-4), math.exp(4 / 3) / 27]
    for row, a, p in zip(weights("vespo", rows), (1, 1, -2, -2), phi, strict=True):
        assert row == pytest.approx([a * p] * 2, rel=1e-12)


def test_gepo_by_hand() -> None:
    # q = 0.2, 0.4 (geometric means of two tokens): E = (0.04 + 0.16) / 0.6 = 1/3; x = 3 * (0.3, 0.36) = 0.9, 1.08
    rows = case([[0.3, 0.3], [0.36, 0.36]], [[0.1, 0.4], [0.2, 0.8]], [1.0, -1.0])
    assert weights("gepo", rows) == [pytest.approx([0.45] * 2, rel=1e-12), pytest.approx([-0.54] * 2, rel=1e-12)]
    # another prompt's response changes nothing
    more = case([[0.3, 0.3], [0.36, 0.36], [0.5, 0.5]], [[0.1, 0.4], [0.2, 0.8], [0.5, 0.5]], [1.0, -1.0, 0.0])
    apart = run("gepo", Case(more.log_probs_BT, more.old_BT, more.advantages, more.mask_BT, torch.tensor([7, 7, 3])))
    same(apart.gradient_BT[:2] * 3, run("gepo", rows).gradient_BT * 2)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dppo_tv", {"delta_low": 0.0}), ("dppo_tv", {"delta_high": 1.5}), ("dppo_tv", {"cap": 0.5}),
        ("dppo_kl", {"delta_high": -1.0}), ("dppo_kl", {"cap": 0.0}), ("ipo", {"eps": 1.0}),
        ("ipo", {"kl_tau": -1e-3}), ("vespo", {"k_pos": -1.0}), ("vespo", {"lambda_neg": 0.0}), ("aspo", {"cap": 0.9}),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(name: str, settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        ALGORITHMS[name].Params(**settings)


def test_probabilities_do_not_exceed_1() -> None:
    # noise can lift a recorded log-probability above 0: the token counts as certain, and nothing is NaN
    for name in ("dppo_tv", "dppo_kl", "ipo"):
        result = run(name, one_token(0.5, 1.0))
        assert result.gradient_BT.isfinite().all() and float(result.gradient_BT) == pytest.approx(
            math.exp(0.5), rel=0.1
        )


# With the frameworks themselves, in float32

SEEDS = range(20)


def single(seed: int) -> Case:
    """A random case in float32, with probabilities."""
    one = random_case(seed, spread=0.8, tokens=20)
    now_BT, old_BT = (x.clamp(max=-1e-3).float() for x in (one.log_probs_BT, one.old_BT))
    return Case(now_BT, old_BT, one.advantages.float(), one.mask_BT, one.groups_B)


def check(name: str, one: Case, theirs: Any) -> None:
    """Loss and gradient agree, the gradient in units of a token's share."""
    log_probs_BT = one.log_probs_BT.clone().requires_grad_()
    loss = theirs(log_probs_BT)
    (gradient_BT,) = torch.autograd.grad(loss, log_probs_BT)
    ours, tokens = run(name, one), one.mask_BT.sum()
    assert -float(ours.objective) == pytest.approx(loss.item(), abs=1e-6)
    torch.testing.assert_close(-ours.gradient_BT * tokens, gradient_BT * tokens, rtol=1e-6, atol=1e-6)


def test_vespo_and_opsm_are_trls() -> None:
    trainer = pytest.importorskip("trl").GRPOTrainer
    for seed in SEEDS:
        one = single(seed)
        mask_BT, advantages_B1 = one.mask_BT.float(), one.advantages[:, None]

        def loss(log_probs_BT: Tensor, one: Case = one, mask_BT: Tensor = mask_BT) -> Tensor:
            log_ratio_BT = log_probs_BT - one.old_BT
            phi_B1 = trainer.get_gamma_weights(one.advantages[:, None], log_ratio_BT, mask_BT, None)
            return -(phi_B1 * one.advantages[:, None] * log_probs_BT * mask_BT).sum() / mask_BT.sum()

        check("vespo", one, loss)
        theirs_B1 = trainer.get_off_policy_mask(advantages_B1, one.log_probs_BT, one.old_BT, mask_BT, 0.1)
        ours_B = off_policy_mask(one.log_probs_BT, one.old_BT, one.advantages, one.mask_BT, 0.1)
        assert torch.equal(ours_B, theirs_B1[:, 0])


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl"])
def test_dppo_is_verls(name: str) -> None:
    verl = pytest.importorskip("verl.trainer.ppo.core_algos")
    params = ALGORITHMS[name].Params()
    config = SimpleNamespace(
        clip_ratio=params.delta_low,
        clip_ratio_low=params.delta_low,
        clip_ratio_high=params.delta_high,
        get=lambda key, default: {"clip_ratio_c": params.cap}.get(key, default),
        global_batch_info={},
    )
    theirs = verl.get_policy_loss_fn(name)
    for seed in SEEDS:
        one = single(seed)
        advantages_BT = one.advantages[:, None].expand_as(one.old_BT)
        mask_BT = one.mask_BT.float()
        check(name, one, lambda x_BT, o=one.old_BT, a=advantages_BT, m=mask_BT: theirs(o, x_BT, a, m, config=config)[0])
