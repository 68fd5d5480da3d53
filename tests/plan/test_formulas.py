"""The planner's formulas against published figures of Qwen3-30B-A3B and against models as transformers makes them."""

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as MODELS

from gspo_cli import recipe as recipes
from gspo_cli.config import Lora, Recipe, TinyModel
from gspo_cli.models import log_probs
from gspo_cli.models.lora import add_lora
from gspo_cli.models.tiny import build_tiny
from gspo_cli.plan import memory, time
from gspo_cli.plan.architecture import PUBLISHED, Architecture, of_config, of_tiny
from gspo_cli.plan.workload import GIB, GPUS, Workload

BIG = PUBLISHED["Qwen/Qwen3-30B-A3B"]
SHAPE = {
    "vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 10, "intermediate_size": 56,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 24, "num_experts": 12, "num_experts_per_tok": 3}


def on(gpu: str, nodes: int = 1, each: int = 8, **rollout: object) -> Workload:
    """The 30B recipe on another machine."""
    table = recipes.load("real/qwen3-30b-a3b-8xh200").model_dump(mode="json")
    table["cluster"] = {"gpu": gpu, "nodes": nodes, "gpus_per_node": each}
    table["rollout"] |= rollout
    return Workload(Recipe.model_validate(table), BIG)


# The published model


def test_the_model_of_the_paper() -> None:
    assert BIG.parameters == pytest.approx(30.53e9, rel=2e-4)
    assert BIG.expert_parameters == pytest.approx(28.99e9, rel=2e-4)
    assert BIG.active == pytest.approx(3.04e9, rel=1e-3)
    assert BIG.kv_bytes(2) == 98_304
    assert BIG.routes_bytes == 384
    assert BIG.forward_flop(4096) == pytest.approx(7.69e9, rel=1e-3)
    assert BIG.forward_flop(16_384) == pytest.approx(12.5e9, rel=3e-3)


@pytest.mark.parametrize(("gpus", "gib"), [(4, 113.7), (6, 75.8), (8, 56.9), (16, 28.4)])
def test_the_training_state_is_16_bytes_a_parameter_over_all_gpus(gpus: int, gib: float) -> None:
    assert sum(memory.state(on("h200", each=gpus)).values()) / GIB == pytest.approx(gib, abs=0.05)


def test_a_compiled_sampler_keeps_its_cache_and_rounded_weights_while_training() -> None:
    def parts(**rollout: object) -> memory.Parts:
        table = on("h100", each=1, engine="transformers", kv_budget_gb=200.0, **rollout).recipe.model_dump(mode="json")
        table["model"] |= {"dtype": "float32", "compute": "bfloat16"}
        return memory.training(Workload(Recipe.model_validate(table), BIG))

    plain, compiled = parts(), parts(compile=True)
    added = {name: compiled[name] for name in compiled.keys() - plain.keys()}
    assert added.keys() == {"sampler's cache", "sampler's rounded weights"}
    assert added["sampler's rounded weights"] == 2 * BIG.parameters
    assert added["sampler's cache"] <= 200 * GIB


@pytest.mark.parametrize(
    ("name", "billions", "without_embedding"),
    [("0.6B", 0.6, 0.44), ("1.7B", 1.7, 1.4), ("4B", 4.0, 3.6), ("8B", 8.2, 6.95), ("30B-A3B", 30.5, 29.9)],
)
def test_the_published_sizes_of_all_five_models(name: str, billions: float, without_embedding: float) -> None:
    model = PUBLISHED[f"Qwen/Qwen3-{name}"]
    embedding = model.head * (1 if model.tied else 2)
    assert model.parameters / 1e9 == pytest.approx(billions, abs=0.05)
    assert (model.parameters - embedding) / 1e9 == pytest.approx(without_embedding, abs=0.05)


def test_the_peak_of_training_on_8_gpus_is_near_what_was_measured_elsewhere() -> None:
    """Passes of 16k tokens: 72 GiB by hand, 74.6 GiB measured by prime-rl; the reserve is their difference."""
    table = on("h100").recipe.model_dump(mode="json")
    table["train"] |= {"micro_batch_tokens": 16_384}
    table["rollout"] |= {"max_new_tokens": 8192}
    parts = memory.training(Workload(Recipe.model_validate(table), BIG))
    assert parts.pop("sleeping engine") / GIB == 2.5  # there it ran on other GPUs
    by_hand = {"gathered layers": 5.0e9, "gathered ends": 2 * 1.8e9, "activations": 3.2e9 + 4.9e9}
    for part, size in by_hand.items():
        assert parts[part] == pytest.approx(size, rel=0.05), part
    assert sum(parts.values()) / GIB == pytest.approx(74.6, abs=1.5)


def test_several_ranks_wait_for_the_copy_of_a_checkpoint_and_for_the_first_and_last_to_be_written() -> None:
    """366 GB = 12 bytes a parameter; 22.9 GB on each of 16 GPUs at 25 GB/s, every 10 batches; twice 183 s in 400."""
    found = {p.name: p.limit_s for p in time.beside(on("h100", nodes=2), GPUS["h100"])}
    assert found["copy to the host"] == pytest.approx(12 * 30.53 / 16 / 25 / 10, rel=1e-3)
    assert found["checkpoint"] == pytest.approx(2 * 12 * 30.53 / 2 / 400, rel=1e-3)
    alone = {p.name: p.limit_s for p in time.beside(on("h100", each=1), GPUS["h100"])}
    assert "copy to the host" not in alone and alone["checkpoint"] == pytest.approx(12 * 30.53 / 2 / 10, rel=1e-3)


def test_the_published_whole_step_comes_back_in_its_own_setting() -> None:
    """NeMo-RL: 2,048 samples of 3,203 tokens on 32 H100 in 192 s, 1,102 tokens/s a GPU."""
    table = on("h100", nodes=4, prompts=128, samples=16, max_new_tokens=2 * 3203).recipe.model_dump(mode="json")
    table["algo"] |= {"minibatches": 128}  # its old pass is a whole one, nearly
    found = time.anchored(Workload(Recipe.model_validate(table), BIG))
    assert found == pytest.approx(192, rel=0.1)


# Any model


@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(**SHAPE, tie_word_embeddings=True),
        Qwen3Config(**SHAPE, tie_word_embeddings=False),
        Qwen3MoeConfig(**SHAPE, **EXPERTS, tie_word_embeddings=True),
        Qwen3MoeConfig(**SHAPE, **EXPERTS, tie_word_embeddings=False, mlp_only_layers=[1, 3]),
        Qwen3MoeConfig(**SHAPE, **EXPERTS, tie_word_embeddings=False, decoder_sparse_step=2),
        Qwen2Config(**{k: v for k, v in SHAPE.items() if k != "head_dim"}, tie_word_embeddings=True),
        LlamaConfig(**SHAPE, tie_word_embeddings=False),
    ],
    ids=["dense tied", "dense", "experts tied", "experts, dense layers", "experts in every second", "qwen2", "llama"],
)
def test_parameters_are_those_of_the_model_itself(config: object) -> None:
    with torch.device("meta"):
        model = MODELS[type(config)](config)
    counted = of_config(config)
    assert counted.parameters == sum(p.numel() for p in model.parameters())
    largest = max(sum(p.numel() for p in layer.parameters()) for layer in model.base_model.layers)
    assert counted.largest_layer == largest


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("tokenizer", ["characters", "bytes"])
def test_a_tiny_model_is_counted_without_building_it(kind: str, tokenizer: str) -> None:
    tiny = TinyModel.model_validate(
        {"kind": kind, "tokenizer": tokenizer, "hidden": 16, "layers": 2, "expert_width": 24, "head_dim": 6}
    )
    model, _ = build_tiny(tiny, seed=0)
    assert of_tiny(tiny) == of_config(model.config)
    assert of_tiny(tiny).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("lora", [Lora(rank=3), Lora(rank=3, targets=("q_proj",)), Lora(rank=3, experts=True)])
def test_adapters_are_counted_as_peft_makes_them(lora: Lora, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("peft")
    tiny = TinyModel(hidden=16, layers=2)
    model, _ = build_tiny(tiny, seed=0)
    add_lora(model, lora, tmp_path_factory.mktemp("base"), None, 0)
    assert of_tiny(tiny).lora_parameters(lora) == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_the_planner_holds_as_many_logits_as_the_trainer() -> None:
    assert memory.CHUNK_LOGITS == log_probs.CHUNK_LOGITS
    assert memory.LOGITS_PER_HIDDEN == log_probs.LOGITS_PER_HIDDEN
    assert memory.KEPT_LOGITS == log_probs.KEPT_LOGITS


def test_a_forward_pass_multiplies_a_token_with_the_active_weights() -> None:
    """By hand: one layer, H = 4, one head of 2 for queries and one for keys, I = 3, V = 5, sequence of 10."""
    model = Architecture("llama", 4, 1, 1, 1, 2, 3, 5, tied=True)
    assert model.active == (8 + 8 + 8 + 8) + 3 * 12 + 20
    assert model.forward_flop(10) == 2 * model.active + 2 * 1 * 2 * 10


def test_a_gpu_that_the_table_lacks_is_entered_by_its_data_sheet() -> None:
    sheet = {"memory_gib": 79, "bf16_tflops": 989, "fp32_tflops": 67, "memory_tb_s": 3.35, "link_gb_s": 450}
    table = on("h100").recipe.model_dump(mode="json")
    table["cluster"]["gpu"] = sheet
    own = Workload(Recipe.model_validate(table), BIG)
    assert own.gpu is not None and own.gpu == replace(GPUS["h100"], name=own.gpu.name)


def test_between_nodes_a_gather_takes_the_adapters_of_a_node() -> None:
    """30.5 B parameters on 16 GPUs: 2.7 TB reach each GPU in a batch, half of them from the other node."""
    workload = Workload(recipes.load("real/qwen3-30b-a3b-16xh100"), BIG)
    assert time.traffic(workload) == pytest.approx(2.75e12, rel=0.01)

    def seconds(gbps: float, divide: str) -> float:
        table = workload.recipe.model_dump(mode="json")
        table["cluster"]["network_gbps"] = gbps
        table["train"]["divide"] = divide
        return next(p for p in time.phases(Workload(Recipe.model_validate(table), BIG)) if p.name == "exchange").limit_s

    assert seconds(400, "all") == pytest.approx(2.75e12 / 450e9, rel=0.01)  # the links within a node are slower
    assert seconds(100, "all") == pytest.approx(2.75e12 / 2 / (8 * 12.5e9), rel=0.01)
    assert seconds(100, "machine") < seconds(100, "all") / 2
    assert seconds(25, "machine") == pytest.approx(2 * 4 * 30.53e9 * 4 / 2 / (8 * 3.125e9), rel=0.01)
