"""Corrections, KL terms and the critic against the oracle, in float64: holes in the mask, rubbish outside it.

B = responses, T = token positions
"""

from random import Random
from typing import Any

import pytest
import torch
from cases import RUBBISH, seeded_batches
from oracle_advantage import gae as oracle_gae
from oracle_advantage import whitened
from oracle_batch import Batch, Grid
from oracle_modifiers import CORRECTION_BOUNDS, kl_penalty
from oracle_modifiers import correction_weight as oracle_weight
from oracle_modifiers import value_loss as oracle_value_loss
from tensors import tensor
from torch import Tensor

from gspo_cli.algorithms.correction import Kind, correction_weight
from gspo_cli.algorithms.critic import gae, value_loss, whiten
from gspo_cli.algorithms.kl import Estimator, kl_terms
from gspo_cli.types import Mean

KINDS: tuple[Kind, ...] = ("tis", "icepop", "seq_mask", "seq_mask_tis", "seq_tis")


def close(actual: Tensor, expected: Any, message: str) -> None:
    torch.testing.assert_close(
        actual.double(), tensor(expected), rtol=1e-10, atol=1e-10, msg=lambda x: f"{message}: {x}"
    )


def random_grid(rng: Random, batch: Batch, low: float, high: float) -> Grid:
    """Numbers at loss tokens, rubbish elsewhere."""
    return [[rng.uniform(low, high) if is_loss else rng.choice(RUBBISH) for is_loss in row] for row in batch.mask]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", ["token", "sequence"])
def test_correction_weights(kind: Kind, unit: Any) -> None:
    rng, limited, free = Random(3), 0, 0
    for batch in seeded_batches(100):
        mask_BT = torch.tensor(batch.mask)
        # the policy's log-probs in place of the old ones, which are never far from the sampler's
        old, sampler = batch.log_probs, batch.sampler
        bounds = rng.choice((CORRECTION_BOUNDS[kind], (rng.uniform(0.7, 1), rng.uniform(1, 1.5))))
        weights = correction_weight(tensor(old), tensor(sampler), mask_BT, unit, kind, bounds)
        assert weights.shape == (
            mask_BT.shape if unit == "token" and kind not in ("seq_mask", "seq_tis") else mask_BT.shape[:1]
        )
        weights_BT = (weights if weights.dim() == 2 else weights[:, None]).expand_as(mask_BT)
        expected_BT = tensor(oracle_weight(old, sampler, batch.mask, unit, kind, bounds))
        close(weights_BT[mask_BT], expected_BT[mask_BT].tolist(), f"{kind} {unit} {bounds} on {batch}")
        at_limit = weights_BT[mask_BT] == (bounds[1] if kind in ("tis", "seq_tis") else 0)
        limited, free = limited + int(at_limit.sum()), free + int((~at_limit).sum())
    assert min(limited, free) > 30


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_terms(estimator: Estimator, extreme: bool) -> None:
    for batch in seeded_batches(100, extreme=extreme):
        log_probs_BT = tensor(batch.log_probs).requires_grad_()
        mask_BT = torch.tensor(batch.mask)
        terms_BT = kl_terms(log_probs_BT, tensor(batch.old), mask_BT, estimator)
        numerator = torch.where(mask_BT, terms_BT, 0.0).sum()
        (gradient_BT,) = torch.autograd.grad(numerator, log_probs_BT)
        expected = kl_penalty(batch.log_probs, batch.old, batch.mask, estimator, "sum", "T")
        close(numerator.detach(), expected.numerator, f"{estimator} on {batch}")
        close(gradient_BT, expected.weight, f"gradient of {estimator} on {batch}")


def test_gae() -> None:
    rng = Random(4)
    for batch in seeded_batches(100):
        values, rewards = random_grid(rng, batch, -1, 1), [rng.uniform(-1, 1) for _ in batch.mask]
        gamma, lam = rng.choice((1.0, rng.random())), rng.choice((1.0, rng.random()))
        mask_BT = torch.tensor(batch.mask)
        advantages_BT, returns_BT = gae(tensor(rewards), tensor(values), mask_BT, gamma, lam)
        advantages, returns = oracle_gae(values, rewards, batch.mask, gamma, lam)
        close(advantages_BT, advantages, f"advantages of {values}, {batch.mask}, gamma {gamma}, lam {lam}")
        close(returns_BT, returns, f"returns of {values}, {batch.mask}, gamma {gamma}, lam {lam}")


def test_whiten() -> None:
    rng = Random(5)
    for batch in seeded_batches(100):
        advantages, mask_BT = random_grid(rng, batch, -3, 2), torch.tensor(batch.mask)
        close(whiten(tensor(advantages), mask_BT), whitened(advantages, batch.mask, ddof=1), f"whitened {advantages}")


def test_value_loss() -> None:
    rng, clipped, inside = Random(6), 0, 0
    for batch in seeded_batches(100):
        values, old = random_grid(rng, batch, -0.3, 0.3), random_grid(rng, batch, -0.3, 0.3)
        returns = random_grid(rng, batch, -1, 1)
        values_BT, mask_BT = tensor(values).requires_grad_(), torch.tensor(batch.mask)
        numerator, denominator, metrics = value_loss(values_BT, tensor(old), tensor(returns), mask_BT, 0.2)
        (gradient_BT,) = torch.autograd.grad(numerator, values_BT)
        expected = oracle_value_loss(values, old, returns, batch.mask, 0.2)
        what = f"{values}, old {old}, returns {returns}, mask {batch.mask}"
        close(numerator.detach(), expected.numerator, f"value loss of {what}")
        close(denominator, expected.denominator, f"tokens of {what}")
        close(gradient_BT, expected.weight, f"gradient of the value loss of {what}")
        measured = metrics["value/clip_frac"]
        assert isinstance(measured, Mean)
        assert (int(measured.numerator), int(measured.denominator)) == (expected.num_clipped, expected.denominator), (
            what
        )
        clipped, inside = clipped + expected.num_clipped, inside + int((gradient_BT != 0).sum())
    assert min(clipped, inside) > 30


def test_a_value_inside_the_range_is_not_clipped() -> None:
    # V_old + (V - V_old) differs from V by rounding: its square must not count as the larger one
    generator = torch.Generator().manual_seed(0)
    values_BT, old_BT, returns_BT = torch.rand(3, 1, 5000, generator=generator).unbind()
    _, _, metrics = value_loss(values_BT * 0.1, old_BT * 0.1, returns_BT, torch.ones(1, 5000, dtype=torch.bool), 0.2)
    measured = metrics["value/clip_frac"]
    assert isinstance(measured, Mean)
    assert int(measured.numerator) == 0
