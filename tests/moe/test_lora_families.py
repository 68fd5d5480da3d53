"""LoRA on every family of routers: adapters where they are meant to be, routers untouched, nothing changed at first."""

from __future__ import annotations

import pytest
import torch
from families import FAMILIES, build

from gspo_cli.config import Lora
from gspo_cli.models.lora import add_lora
from gspo_cli.moe.hooks import tapped
from gspo_cli.moe.routers import find_routing

IDS_BT = torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_adapters_leave_routers_alone(name: str, experts: bool) -> None:
    model = build(name)
    with torch.no_grad():
        before = model(IDS_BT, use_cache=False).logits
    routing = find_routing(model)
    add_lora(model, Lora(rank=2, experts=experts), "base", None, 0)
    trained = [n for n, p in model.named_parameters() if p.requires_grad]
    assert trained and all(".lora_" in n for n in trained)
    # without `experts`, in the attention (and one linear gate of shared experts) alone
    inside = {n.split(".lora_")[0].split(".")[3] for n in trained}
    assert inside - {"self_attn"} <= ({"mlp"} if experts or name == "qwen2_moe" else set())
    assert any(".experts." in n for n in trained) == experts
    found = find_routing(model)
    assert routing is not None and found is not None and found.gates == routing.gates
    with torch.no_grad(), tapped(found) as tap:
        assert torch.equal(model(IDS_BT, use_cache=False).logits, before)
    assert tap is not None and tap.natural_LRK.shape[1] == IDS_BT.numel()
