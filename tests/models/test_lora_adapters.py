"""LoRA: what gets adapters, that they begin as nothing, and that saved ones come back whole.

B = responses, T = token positions
"""

import copy
import json
from pathlib import Path

import pytest
import torch
from family_walk import saved
from peft import LoraConfig, PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from gspo_cli.config import Lora, ModelConfig
from gspo_cli.errors import GspoError
from gspo_cli.models.load import load_policy, weights_hash
from gspo_cli.models.log_probs import token_scores
from gspo_cli.models.lora import adapters_off, add_lora

IDS_BT = torch.randint(3, 99, (4, 12), generator=torch.Generator().manual_seed(0))
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
EVERYWHERE = Lora(rank=4, experts=True)


def scores(model: PreTrainedModel) -> Tensor:
    """Log-probabilities of all tokens but each row's first: [B, T]."""
    mask_BT = torch.ones_like(IDS_BT, dtype=torch.bool)
    mask_BT[:, 0] = False
    return token_scores(model, IDS_BT, mask_BT, 1.0).log_probs_BT.detach()


def adapted(model: PreTrainedModel, lora: Lora, start: str | Path = "base", seed: int = 0) -> PreTrainedModel:
    """A copy with adapters."""
    copied = copy.deepcopy(model)
    add_lora(copied, lora, start, None, seed)
    return copied


def trained(model: PreTrainedModel) -> dict[str, Tensor]:
    """The parameters that training would move."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def stir(model: PreTrainedModel) -> None:
    """Moves the adapters to where none of them is nothing."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in trained(model).values():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator))


def layers(model: PreTrainedModel) -> set[str]:
    """The last names of what has adapters."""
    return {name.split(".lora_")[0].rpartition(".")[2] for name in trained(model)}


@pytest.fixture
def base(tiny_moe: PreTrainedModel, tmp_path: Path) -> Path:
    """The mixture of experts as a folder."""
    return saved(tiny_moe, tmp_path / "base")


@pytest.mark.parametrize("experts", [False, True])
def test_new_adapters_change_no_log_probability(tiny_moe: PreTrainedModel, experts: bool) -> None:
    model = adapted(tiny_moe, Lora(rank=4, experts=experts))
    assert torch.equal(scores(model), scores(tiny_moe))
    stir(model)
    assert float((scores(model) - scores(tiny_moe)).abs().max()) > 0.1


def test_switched_off_they_leave_the_start_model(tiny_moe: PreTrainedModel) -> None:
    model = adapted(tiny_moe, EVERYWHERE)
    stir(model)
    before, names = scores(model), set(trained(model))
    with adapters_off(model):
        assert torch.equal(scores(model), scores(tiny_moe))
    assert torch.equal(scores(model), before) and set(trained(model)) == names
    with adapters_off(tiny_moe):
        assert len(trained(tiny_moe)) == len(list(tiny_moe.parameters()))


def test_every_linear_layer_has_them_and_nothing_else(tiny_moe: PreTrainedModel, tiny_dense: PreTrainedModel) -> None:
    assert layers(adapted(tiny_dense, Lora())) == ATTENTION | {"gate_proj", "up_proj", "down_proj"}
    assert layers(adapted(tiny_moe, Lora())) == ATTENTION
    assert layers(adapted(tiny_moe, Lora(targets=("q_proj", "v_proj")))) == {"q_proj", "v_proj"}
    # the inner wrapper of the two around an experts' module is its base_layer
    assert layers(adapted(tiny_moe, EVERYWHERE)) == ATTENTION | {"experts", "base_layer"}


def test_the_seed_fixes_them_and_leaves_the_global_one(tiny_moe: PreTrainedModel) -> None:
    state = torch.get_rng_state()
    first, again, other = (weights_hash(adapted(tiny_moe, EVERYWHERE, seed=s)) for s in (5, 5, 6))
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("experts", [False, True])
def test_a_saved_folder_is_the_same_policy_for_peft(base: Path, tmp_path: Path, dtype: str, experts: bool) -> None:
    config, folder = ModelConfig(path=str(base), dtype=dtype, device="cpu"), tmp_path / "adapters"
    model, tokenizer = load_policy(config, base)
    add_lora(model, Lora(rank=4, experts=experts), base, None, 0)
    stir(model)
    assert {p.dtype for p in trained(model).values()} == {torch.float32}
    assert model.dtype == getattr(torch, dtype)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    said = json.loads((folder / "adapter_config.json").read_text())
    assert (said["r"], said["lora_alpha"], said["base_model_name_or_path"]) == (4, 32, str(base))
    assert not (folder / "model.safetensors").exists()

    ours, _ = load_policy(config, folder)
    assert torch.equal(scores(ours), scores(model)) and set(trained(ours)) == set(trained(model))
    assert weights_hash(ours) == weights_hash(model)
    # peft by itself, without anything of ours
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype)).eval()
    theirs = PeftModel.from_pretrained(plain, folder)
    with torch.no_grad():
        padded = [m(input_ids=IDS_BT, use_cache=False).logits for m in (theirs, model)]
    assert torch.equal(*padded)
    # merged, as the documentation says, to rounding
    if dtype == "float32":
        torch.testing.assert_close(scores(theirs.merge_and_unload()), scores(model), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["lm_head", "embed_tokens", "gate_proj", "gate", "experts"])
def test_what_cannot_have_adapters_is_refused(tiny_moe: PreTrainedModel, name: str) -> None:
    with pytest.raises(GspoError, match=rf"(?s)\['{name}'\].*k_proj, o_proj, q_proj, v_proj"):
        adapted(tiny_moe, Lora(targets=("q_proj", name)))


def test_experts_of_a_dense_model_are_refused(tiny_dense: PreTrainedModel) -> None:
    with pytest.raises(GspoError, match="Qwen3ForCausalLM"):
        adapted(tiny_dense, Lora(experts=True))


def break_folder(folder: Path, how: str) -> None:
    """One thing wrong with a folder of adapters."""
    file = folder / "adapter_config.json"
    said = json.loads(file.read_text())
    if how == "weights":
        (folder / "adapter_model.safetensors").unlink()
    elif how == "json":
        file.write_text("{")
    else:
        changed = {"base": {"base_model_name_or_path": "/nowhere"}, "kind": {"peft_type": "IA3"}, "rank": {"r": 8}}
        allowed = {"peft_type", "base_model_name_or_path", "target_modules", "task_type"} if how == "kind" else said
        file.write_text(json.dumps({k: v for k, v in said.items() if k in allowed} | changed[how]))


@pytest.mark.parametrize(
    ("how", "word"),
    [("weights", "no adapter_model.safetensors"), ("json", "cannot read"), ("base", "no model in /nowhere"),
     ("kind", "IA3"), ("rank", "do not fit")],
)  # fmt: skip
def test_a_folder_that_is_not_whole(tiny_moe: PreTrainedModel, base: Path, tmp_path: Path, how: str, word: str) -> None:
    folder = saved(adapted(tiny_moe, Lora(rank=4), base), tmp_path / "adapters")
    break_folder(folder, how)
    with pytest.raises(GspoError, match=word):
        load_policy(ModelConfig(path=str(folder), device="cpu"), folder)


@pytest.mark.filterwarnings("ignore::UserWarning")  # peft's own about tied heads
def test_adapters_of_the_head_are_refused(base: Path, tmp_path: Path) -> None:
    plain = AutoModelForCausalLM.from_pretrained(base)
    plain.add_adapter(LoraConfig(r=2, target_modules=["lm_head"]))
    saved(plain, tmp_path / "adapters")
    with pytest.raises(GspoError, match="language-model head"):
        load_policy(ModelConfig(path=str(base), device="cpu"), tmp_path / "adapters")
