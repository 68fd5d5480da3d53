"""The planner's bytes against what training on a CPU really holds."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from gspo_cli.config import Recipe
from gspo_cli.models.admission import admit, paths_of
from gspo_cli.models.log_probs import token_scores
from gspo_cli.models.packing import pack
from gspo_cli.plan import memory
from gspo_cli.plan.architecture import of_config
from gspo_cli.plan.workload import Workload
from gspo_cli.training.setup import make_optimizer

ROWS, LENGTH = 4, 64
SHAPE = {
    "vocab_size": 64, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "tie_word_embeddings": True,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 96, "num_experts": 8, "num_experts_per_tok": 2}


def model(kind: str, layers: int, dtype: torch.dtype) -> PreTrainedModel:
    """A small model that is fed packed rows."""
    torch.manual_seed(0)
    shape = SHAPE | {"num_hidden_layers": layers}
    made = (
        Qwen3ForCausalLM(Qwen3Config(**shape))
        if kind == "qwen3"
        else Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **EXPERTS))
    )
    made = made.to(dtype).eval()
    admit(made, "the model")
    assert paths_of(made).packed
    return made


def scores(trained: PreTrainedModel) -> torch.Tensor:
    """The log-probabilities of some rows without a common beginning."""
    generator = torch.Generator().manual_seed(1)
    ids_BT = torch.randint(SHAPE["vocab_size"], (ROWS, LENGTH), generator=generator)
    mask_BT = torch.arange(LENGTH).expand(ROWS, LENGTH) > 0
    return token_scores(trained, ids_BT, mask_BT, 1.0, pack([tuple(row) for row in ids_BT.tolist()])).log_probs_BT


def kept(trained: PreTrainedModel) -> float:
    """Bytes a token that a forward pass keeps for the backward pass, without the parameters."""
    own = {p.untyped_storage().data_ptr() for p in trained.parameters()}
    found: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scores(trained)
        return sum(storage.nbytes() for storage in found.values()) / (ROWS * LENGTH)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_a_layer_keeps_what_the_planner_says(kind: str, dtype: torch.dtype) -> None:
    one, three = model(kind, 1, dtype), model(kind, 3, dtype)
    measured = (kept(three) - kept(one)) / 2
    planned = dtype.itemsize * memory.layer_numbers(of_config(one.config), dtype.itemsize == 2)
    assert measured == pytest.approx(planned, rel=0.05)


def test_recomputing_keeps_the_inputs_of_the_layers_and_changes_no_gradient() -> None:
    plain, again = model("qwen3_moe", 3, torch.float32), model("qwen3_moe", 3, torch.float32)
    again.gradient_checkpointing_enable({"use_reentrant": False})
    other = copy.deepcopy(again)
    other.base_model.layers = nn.ModuleList(list(other.base_model.layers)[:1])
    assert (kept(again) - kept(other)) / 2 == 4 * SHAPE["hidden_size"]
    for trained in (plain, again):
        scores(trained).sum().backward()
    assert not again.training
    for (name, one), two in zip(plain.named_parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_gradients_and_optimizer_are_exact(dtype: str) -> None:
    recipe = Recipe.model_validate({"name": "t", "model": {"path": "x", "dtype": dtype}})
    trained = model("qwen3_moe", 2, getattr(torch, dtype))
    optimizer = make_optimizer(trained, recipe)
    scores(trained).sum().backward()
    planned = memory.state(Workload(recipe, of_config(trained.config)))
    assert size(p.grad for p in trained.parameters()) == planned["gradients"]
    optimizer.step()
    moments = [t for state in optimizer.state.values() for name, t in state.items() if name != "step"]
    assert size(trained.parameters()) == planned["weights"]
    assert size(moments) == planned["optimizer"]


def size(tensors: Any) -> int:
    """Bytes of tensors."""
    return sum(t.nbytes for t in tensors)
