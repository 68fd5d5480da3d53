"""Synthetic router noise: the share of experts it exchanges, what it depends on, and that replay undoes it.

L = MoE layers, N = recorded tokens, K = experts per token, E = experts
"""

import pytest
import torch

from gspo_cli.errors import GspoError
from gspo_cli.moe.route_noise import logit_noise, noised_routes, prefix_hashes
from gspo_cli.moe.volatility import slot_churn

LAYERS, TOKENS, EXPERTS, TOP_K = 3, 600, 8, 2


@pytest.fixture(scope="module")
def logits_LNE() -> torch.Tensor:
    scale_L11 = torch.tensor([0.01, 1.0, 30.0])[:, None, None]  # layers as flat and as sharp as they come
    return (scale_L11 * torch.randn(LAYERS, TOKENS, EXPERTS, generator=torch.Generator().manual_seed(0))).double()


def noise(key: int = 1) -> torch.Tensor:
    ids_BT = torch.arange(TOKENS)[:, None]
    return logit_noise(prefix_hashes(ids_BT, key)[:, 0], LAYERS, EXPERTS)


@pytest.mark.parametrize("share", [0.03, 0.1, 0.5])
def test_each_layer_changes_the_wanted_share_of_the_counted_slots(logits_LNE: torch.Tensor, share: float) -> None:
    natural_LNK, counted_M = logits_LNE.topk(TOP_K).indices, torch.arange(100, TOKENS)
    routes_LNK = noised_routes(logits_LNE, natural_LNK, noise(), counted_M, share)
    changed = slot_churn(natural_LNK[:, counted_M], routes_LNK[:, counted_M])
    assert [float(n) / changed.denominator for n in changed.numerator_L] == pytest.approx([share] * LAYERS, abs=0.003)


def test_noise_is_standard_normal_and_independent() -> None:
    drawn = noise()
    assert abs(float(drawn.mean())) < 0.05 and float(drawn.std()) == pytest.approx(1, abs=0.03)
    assert float(drawn.abs().max()) < 6
    flat = drawn.permute(0, 2, 1).flatten(0, 1)
    assert float((torch.corrcoef(flat) - torch.eye(len(flat))).abs().max()) < 0.2  # between layers and experts
    assert abs(float(torch.corrcoef(torch.stack([drawn.flatten(), noise(2).flatten()]))[0, 1])) < 0.05


def test_a_position_has_the_noise_of_its_beginning() -> None:
    ids_BT = torch.tensor([[5, 6, 7, 8], [5, 6, 9, 8]])
    hashes_BT = prefix_hashes(ids_BT, 3)
    assert torch.equal(hashes_BT[0, :2], hashes_BT[1, :2]) and not (hashes_BT[0, 2:] == hashes_BT[1, 2:]).any()
    assert torch.equal(prefix_hashes(ids_BT[:1, :3], 3), hashes_BT[:1, :3])
    assert not (prefix_hashes(ids_BT, 4) == hashes_BT).any()


def test_routers_with_another_rule_are_refused(logits_LNE: torch.Tensor) -> None:
    with pytest.raises(GspoError, match="largest logits"):
        noised_routes(logits_LNE, (-logits_LNE).topk(TOP_K).indices, noise(), torch.arange(TOKENS), 0.1)


def test_an_expert_that_rounding_puts_level_may_be_chosen(logits_LNE: torch.Tensor) -> None:
    """Models choose by a softmax in float32, which gives logits a rounding apart the same weight: once in a few
    million tokens the router then takes the other one."""
    tied_LNE = logits_LNE.clone()
    best_LNK = tied_LNE.topk(TOP_K + 1)
    last, next_one = best_LNK.indices[0, 5, TOP_K - 1], best_LNK.indices[0, 5, TOP_K]
    tied_LNE[0, 5, next_one] = tied_LNE[0, 5, last] - 1e-7
    natural_LNK = tied_LNE.topk(TOP_K).indices
    natural_LNK[0, 5, TOP_K - 1] = next_one
    noised_routes(tied_LNE, natural_LNK, noise(), torch.arange(TOKENS), 0.1)
