"""Tiny mixture-of-experts models with random weights, one of each way that transformers builds and weighs them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SHAPE = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_experts_per_tok": 3, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "qk_nope_head_dim": 8,
}  # fmt: skip

DEEPSEEK = LATENT | {
    "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 16
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 16, "norm_topk_prob": True},
    "qwen3_moe with a dense layer": {
        "num_experts": 8, "moe_intermediate_size": 16, "norm_topk_prob": False, "mlp_only_layers": [1]
    },
    "qwen2_moe": {"num_experts": 8, "moe_intermediate_size": 16},
    "mixtral": {"num_local_experts": 8},
    "olmoe": {"num_experts": 8},
    "gpt_oss": {"num_local_experts": 8, "head_dim": 8},
    "deepseek_v2": DEEPSEEK | {"n_group": 1, "topk_group": 1, "topk_method": "greedy"},
    "deepseek_v3": DEEPSEEK | {"n_group": 2, "topk_group": 2},
    "glm4_moe": {
        "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
        "moe_intermediate_size": 16, "head_dim": 8,
    },
}  # fmt: skip
"""By the kind that transformers knows it by, and what sets it apart."""


def build(name: str) -> PreTrainedModel:
    """A model of the family, with weights wide enough that experts matter, in eval mode."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name.split()[0], **SHAPE | FAMILIES[name])
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3) if parameter.dim() > 1 else parameter.add_(0.01)
    return model.eval()
