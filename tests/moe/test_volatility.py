"""Volatility: hand-made sets, and what must hold for any."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gspo_cli.moe.volatility import loads, router_differs, router_entropy, slot_churn, token_any_layer, weighted_churn
from gspo_cli.types import LayerMeans, Mean

BEFORE = torch.tensor([[[0, 1], [3, 4], [2, 5]], [[0, 1], [0, 1], [4, 5]]])
"""Two layers, three tokens, two experts each."""
AFTER = torch.tensor([[[1, 2], [4, 3], [0, 1]], [[1, 0], [0, 2], [5, 4]]])
"""Layer 0: one slot of token 0 and both of token 2; layer 1: one slot of token 1. Order changes nothing."""


def value(found: LayerMeans | Mean) -> float:
    mean = found.total() if isinstance(found, LayerMeans) else found
    return float(mean.numerator) / float(mean.denominator)


def layers(found: LayerMeans) -> list[float]:
    return [value(mean) for mean in found.layers()]


def test_hand_made_sets() -> None:
    assert value(slot_churn(BEFORE, AFTER)) == 4 / 12
    assert layers(slot_churn(BEFORE, AFTER)) == [3 / 6, 1 / 6]
    assert value(router_differs(BEFORE, AFTER)) == 3 / 6
    assert layers(router_differs(BEFORE, AFTER)) == [2 / 3, 1 / 3]
    assert value(token_any_layer(BEFORE, AFTER)) == 3 / 3
    assert value(token_any_layer(BEFORE[1:], AFTER[1:])) == 1 / 3


def test_churn_weighted_by_gate_mass() -> None:
    # {0: .75, 1: .25} -> {1: .4, 2: .6}: only expert 1 stays, with min(.25, .4) of the mass
    before, after = torch.tensor([[[0, 1]]]), torch.tensor([[[2, 1]]])
    gates, now = torch.tensor([[[0.75, 0.25]]]), torch.tensor([[[0.6, 0.4]]])
    assert value(weighted_churn(before, gates, after, now)) == pytest.approx(0.75, abs=1e-7)
    # gates that do not sum to 1 (norm_topk_prob off) are divided by their sum
    assert value(weighted_churn(before, gates * 0.3, after, now * 5)) == pytest.approx(0.75, abs=1e-7)
    # a change of weights alone is a change too; none at all is exactly 0
    assert value(weighted_churn(before, gates, before, gates.flip(-1))) == pytest.approx(0.5, abs=1e-7)
    assert value(weighted_churn(before, gates, before, gates)) == 0


@st.composite
def choices(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    """Two choices of k of 8 experts, [2, 5, k], the second sometimes partly the first."""
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    k, kept = draw(st.integers(1, 8)), draw(st.floats(0, 1))
    first, second = (torch.rand(2, 5, 8, generator=g).argsort(-1)[..., :k] for _ in range(2))
    return first, torch.where(torch.rand(2, 5, 1, generator=g) < kept, first, second), k


@given(choices())
def test_bounds_symmetry_and_order(drawn: tuple[Tensor, Tensor, int]) -> None:
    before, after, k = drawn
    for measure in (slot_churn, router_differs, token_any_layer):
        there = value(measure(before, after))
        assert 0 <= there <= 1
        assert there == value(measure(after, before)) == value(measure(before.flip(-1), after))
        assert value(measure(before, before.flip(-1))) == 0
    churn, differs, any_layer = (value(m(before, after)) for m in (slot_churn, router_differs, token_any_layer))
    # a set that differs has between 1 and k changed slots; a token that differs, between 1 and 2 changed layers
    assert churn <= differs + 1e-12 and differs <= min(1, k * churn) + 1e-12
    assert differs <= any_layer + 1e-12 and any_layer <= 2 * differs + 1e-12


def test_load_violation() -> None:
    # 4 slots over 4 experts: loads 2, 1, 1, 0 -> (2 - 1) / 1; the second layer is balanced
    violation = loads(torch.tensor([[[0, 1], [0, 2]], [[0, 1], [2, 3]]]), 4).violation()
    assert layers(violation) == [1.0, 0.0] and value(violation) == 0.5


def test_router_entropy() -> None:
    even, sure = torch.zeros(1, 2, 4), torch.tensor([[[0.0, -1e4, -1e4, -1e4]] * 2])
    assert value(router_entropy(even)) == pytest.approx(1.3862944, abs=1e-6)
    assert value(router_entropy(sure)) == pytest.approx(0, abs=1e-6)
    assert layers(router_entropy(torch.cat([even, sure]))) == pytest.approx([1.3862944, 0], abs=1e-6)
