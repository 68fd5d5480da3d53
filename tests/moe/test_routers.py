"""Routers are found by structure in every family, and capture reads what they chose; LoRA leaves them alone."""

import copy

import pytest
import torch
from families import FAMILIES, build
from torch import nn
from transformers import PreTrainedModel

from gspo_cli.config import Lora
from gspo_cli.errors import GspoError
from gspo_cli.models.lora import add_lora
from gspo_cli.moe.hooks import tapped
from gspo_cli.moe.routers import Routing, find_routing, gating_of, is_mixture, replayable

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_found(name: str) -> None:
    routing = find_routing(build(name))
    assert routing is not None
    dense = {"qwen3_moe with a dense layer": 1, "deepseek_v2": 0, "deepseek_v3": 0, "glm4_moe": 0}
    assert routing.layers == tuple(i for i in range(3) if i != dense.get(name))
    assert (routing.num_experts, routing.top_k, routing.dtype) == (8, 3, torch.uint8)


def test_capture_matches_the_router(tiny_moe: PreTrainedModel) -> None:
    with torch.no_grad(), tapped(find_routing(tiny_moe)) as tap:
        logits = tiny_moe(input_ids=IDS, use_cache=False, output_router_logits=True).router_logits
    assert tap is not None
    for layer, layer_logits in enumerate(logits):
        share = layer_logits.softmax(-1).topk(2)
        assert torch.equal(tap.natural_LRK[layer], share.indices)
        torch.testing.assert_close(tap.gates_LRK[layer], share.values / share.values.sum(-1, keepdim=True))
        assert torch.equal(tap.logits_LRE[layer], layer_logits)


def test_capture_leaves_no_hooks(tiny_moe: PreTrainedModel) -> None:
    before, routing = hooks(tiny_moe), replayable(tiny_moe, "replay")
    with pytest.raises(RuntimeError, match="stop"), tapped(routing) as tap:
        assert tap is not None and hooks(tiny_moe) == before + 2
        with tap.replaying(torch.zeros(2, 8, 2, dtype=torch.long)):
            assert hooks(tiny_moe) == before + 6
            raise RuntimeError("stop")
    assert hooks(tiny_moe) == before


def test_a_dense_model_has_no_routers(tiny_dense: PreTrainedModel) -> None:
    assert find_routing(tiny_dense) is None and not is_mixture(tiny_dense)
    with tapped(None) as tap:
        assert tap is None
    with pytest.raises(GspoError) as caught:
        replayable(tiny_dense, "algo.replay = 'r2'")
    assert caught.value.message == "algo.replay = 'r2' with Qwen3ForCausalLM" and "dense" in caught.value.why


@pytest.mark.parametrize("name", FAMILIES)
def test_the_rule_is_found_without_the_models_weights(name: str) -> None:
    model = build(name)
    known = replayable(model, "replay").rule
    assert replayable(copy.deepcopy(model).to("meta"), "replay").rule is known
    routing = find_routing(model)
    assert routing is not None
    with torch.no_grad():
        for gate in routing.gates:
            gate.weight.zero_()  # all rules give equal logits equal weights
    assert gating_of(routing.gates) is known


@pytest.mark.parametrize(("experts", "dtype"), [(255, torch.uint8), (256, torch.int16)])
def test_one_byte_a_slot_up_to_255_experts(experts: int, dtype: torch.dtype) -> None:
    routing = Routing((0,), (), (), experts, 8)
    assert routing.dtype is dtype and torch.tensor(routing.missing).to(dtype).item() == experts


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
