"""Expert churn: hand-made sets, bounds, and capture from a real model."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel

from gspo_cli.moe.routing import captured_routes
from gspo_cli.moe.volatility import at_predicting_positions, loads, slot_churn


def churn(before: list, after: list) -> float:
    numerator, denominator = slot_churn(torch.tensor(before), torch.tensor(after))
    return float(numerator) / float(denominator)


def test_hand_made_sets() -> None:
    # one layer, two tokens, two experts each: {0,1} -> {1,2} changes one slot of four, {3,4} -> {4,3} none
    assert churn([[[0, 1], [3, 4]]], [[[1, 2], [4, 3]]]) == 1 / 4
    assert churn([[[0, 1]], [[2, 3]]], [[[0, 1]], [[5, 6]]]) == 2 / 4


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_bounds_symmetry_and_order(seed: int, k: int) -> None:
    g = torch.Generator().manual_seed(seed)
    sets = [torch.stack([torch.randperm(6, generator=g)[:k] for _ in range(10)]).view(2, 5, k) for _ in range(2)]
    value = float(slot_churn(*sets).numerator)
    assert 0 <= value <= 10 * k
    assert value == float(slot_churn(*sets[::-1]).numerator)
    assert value == float(slot_churn(sets[0].flip(-1), sets[1]).numerator)
    assert float(slot_churn(sets[0], sets[0]).numerator) == 0


def test_load_violation() -> None:
    # 4 slots over 4 experts: loads 2, 1, 1, 0 -> (2 - 1) / 1
    value = loads(torch.tensor([[[0, 1], [0, 2]]]), 4).violation()
    assert float(value.numerator) / float(value.denominator) == 1.0


def test_capture_matches_the_router(tiny_moe: PreTrainedModel) -> None:
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    mask = torch.tensor([[False, False, True, True], [False, True, True, False]])
    with torch.no_grad(), captured_routes(tiny_moe) as routes:
        logits = tiny_moe(input_ids=ids, use_cache=False, output_router_logits=True).router_logits
    assert routes is not None
    stacked = routes.stacked(2)
    for layer, layer_logits in enumerate(logits):
        expected = layer_logits.view(2, 4, -1).topk(2).indices
        assert torch.equal(stacked[layer].sort(-1).values, expected.sort(-1).values)
    picked = at_predicting_positions(stacked, mask)
    assert torch.equal(picked, torch.stack([stacked[:, 0, 1], stacked[:, 0, 2], stacked[:, 1, 0], stacked[:, 1, 1]], 1))


def test_capture_leaves_no_hooks(tiny_moe: PreTrainedModel) -> None:
    def count() -> int:
        return sum(len(m._forward_hooks) for m in tiny_moe.modules())

    before = count()
    with captured_routes(tiny_moe):
        assert count() == before + 2
    assert count() == before


def test_a_dense_model_has_no_routes(tiny_dense: PreTrainedModel) -> None:
    with captured_routes(tiny_dense) as routes:
        assert routes is None
