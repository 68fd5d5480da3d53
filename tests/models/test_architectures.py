"""What single architectures need: adapters, recomputed layers, a critic, a sampler's cache, weights that stay."""

import copy
import json
from pathlib import Path

import pytest
import torch
from family_walk import build, saved
from torch import Tensor
from transformers import PreTrainedModel

from gspo_cli.config import Lora, ModelConfig
from gspo_cli.errors import GspoError
from gspo_cli.models.admission import admit, paths_of
from gspo_cli.models.load import load_policy
from gspo_cli.models.log_probs import token_scores
from gspo_cli.models.lora import add_lora, linear_layers
from gspo_cli.models.trunk import ValueModel, enable_recompute, head_dim, token_values, trunk_of
from gspo_cli.rollout.builtin.engine import TransformersEngine
from gspo_cli.types import Prompt, Sampling

IDS_BT = torch.randint(3, 61, (2, 12), generator=torch.Generator().manual_seed(0))
MASK_BT = (torch.arange(12) > 4).expand(2, 12)


def scores(model: PreTrainedModel) -> Tensor:
    return token_scores(model, IDS_BT, MASK_BT, 1.0).log_probs_BT


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        ("gpt2", {"c_attn", "c_proj", "c_fc"}),
        ("mamba", {"in_proj", "x_proj"}),
        ("ctrl", {"Wq", "Wk", "Wv", "dense", "ffn.0", "ffn.2"}),
        ("falcon", {"query_key_value", "dense"}),
        pytest.param("phimoe", {"q_proj", "k_proj", "v_proj", "o_proj"}, marks=pytest.mark.slow),
        pytest.param("llama4_text", {"q_proj", "k_proj", "v_proj", "o_proj"}, marks=pytest.mark.slow),
    ],
)
def test_adapters_are_where_peft_can_have_them(kind: str, layers: set[str]) -> None:
    model = build(kind)
    assert linear_layers(model) >= layers
    admit(model, kind)
    plain = scores(model).detach()
    add_lora(model, Lora(rank=2), "start", None, seed=0)
    assert {n.split(".lora_")[0].rpartition(".")[2] for n, p in model.named_parameters() if p.requires_grad} >= {
        name.rpartition(".")[2] for name in layers
    }
    torch.testing.assert_close(scores(model), plain, rtol=0, atol=1e-6)
    scores(model).sum().backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "lora_B" in n)


def test_what_peft_cannot_adapt_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gspo_cli.models.lora.MAMBA_NAMES", frozenset())
    with pytest.raises(GspoError, match=r"model\.lora with MambaForCausalLM") as caught:
        add_lora(build("mamba"), Lora(rank=2), "start", None, seed=0)
    assert "out_proj" in caught.value.why


def test_recomputed_layers_draw_no_experts() -> None:
    model = build("phimoe")
    admit(model, "it")
    plain = scores(model).detach()
    gradients = []
    for _ in range(2):
        model.zero_grad()
        log_probs_BT = scores(model)
        torch.testing.assert_close(log_probs_BT, plain, rtol=0, atol=1e-6)
        log_probs_BT.sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
        enable_recompute(model)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert not any(module.training for module in model.modules())


def test_layers_that_cannot_be_recomputed_are_refused() -> None:
    with pytest.raises(GspoError, match=r"train\.recompute with CTRLLMHeadModel"):
        enable_recompute(build("ctrl"))


def test_a_critic_on_hidden_states_that_are_projected() -> None:
    model = build("opt", word_embed_proj_dim=16)
    assert token_values(ValueModel(copy.deepcopy(trunk_of(model))), IDS_BT, None).shape == (IDS_BT.numel(), 1)


@pytest.mark.parametrize(
    "kind", ["mamba", "rwkv", "bloom", *(pytest.param(k, marks=pytest.mark.slow) for k in ("falcon_h1", "minimax"))]
)
def test_the_engine_samples_without_a_shared_cache(kind: str) -> None:
    model = build(kind)
    admit(model, kind)
    assert paths_of(model).cache != "shared" and (head_dim(model) is not None) == (kind not in ("mamba", "rwkv"))
    prompts = [Prompt("a", (5, 6, 7)), Prompt("b", (8, 9))]
    seeds = {(p.problem_id, k): k for p in prompts for k in range(3)}
    sampling = Sampling(1.0, 4)
    plenty = TransformersEngine(model, frozenset({1}), 1.0, 1e9).generate(prompts, sampling, seeds)
    scarce = TransformersEngine(model, frozenset({1}), 1e-6, 1e9).generate(prompts, sampling, seeds)
    assert [s.token_ids for s in plenty] == [s.token_ids for s in scarce] and len(plenty) == 6


def loaded_from(folder: Path) -> PreTrainedModel:
    return load_policy(ModelConfig(path=str(folder), device="cpu"), folder)[0]


@pytest.mark.parametrize("kind", ["gpt_oss", "mamba", "bloom"])
def test_families_without_sdpa_in_transformers_can_be_loaded(kind: str, tmp_path: Path) -> None:
    model = build(kind)
    assert not model._supports_sdpa
    loaded = loaded_from(saved(model, tmp_path))
    torch.testing.assert_close(loaded(input_ids=IDS_BT).logits, model(input_ids=IDS_BT).logits, rtol=0, atol=1e-4)


def test_rwkv_keeps_its_weights(tmp_path: Path) -> None:
    model = build("rwkv", num_hidden_layers=4, rescale_every=2, vocab_size=98)
    plain = copy.deepcopy(model)(input_ids=IDS_BT).logits.log_softmax(-1).detach()
    for folder in ("start", "checkpoint"):
        model = loaded_from(saved(model, tmp_path / folder))
        # its norms' epsilon weighs more where hidden states are divided: 1.5e-4
        torch.testing.assert_close(model(input_ids=IDS_BT).logits.log_softmax(-1), plain, rtol=0, atol=1e-3)


def test_tables_that_no_memory_holds_are_refused(tmp_path: Path) -> None:
    saved(build("gptj", vocab_size=98), tmp_path)
    known = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(known | {"n_positions": 1 << 36}))
    with pytest.raises(GspoError) as refused:
        loaded_from(tmp_path)
    assert "masks and the like" in refused.value.why
