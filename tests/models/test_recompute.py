"""`train.recompute`: the same gradients from layers that are computed twice."""

from __future__ import annotations

import copy

import torch
from transformers import PreTrainedModel

from gspo_cli.models.log_probs import token_scores
from gspo_cli.models.packing import pack
from gspo_cli.models.trunk import enable_recompute

ROWS = [(5, 6, 7, 8), (5, 6, 9), (4, 4, 4, 4, 4)]


def test_gradients_are_equal_and_layers_run_twice(tiny_moe: PreTrainedModel) -> None:
    found = []
    for recomputed in (False, True):
        model = copy.deepcopy(tiny_moe)
        if recomputed:
            enable_recompute(model)
        calls: list[int] = []
        model.base_model.layers[0].self_attn.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        ids_BT = torch.tensor([row + (0,) * (5 - len(row)) for row in ROWS])
        mask_BT = torch.tensor([[1 <= t < len(row) for t in range(5)] for row in ROWS])
        token_scores(model, ids_BT, mask_BT, 1.0, pack(ROWS)).log_probs_BT.sum().backward()
        found.append((len(calls), [p.grad for p in model.parameters()]))
    (once, plain), (twice, saved) = found
    assert (once, twice) == (1, 2)
    for a, b in zip(plain, saved, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
