"""The script that makes SmolLM2's folder from the package that carries it."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from gspo_cli.models.tiny import character_tokenizer

SCRIPT = Path(__file__).parents[2] / "results" / "programs" / "smollm2.py"


def test_what_was_read_from_a_quantised_file_becomes_an_ordinary_folder(tmp_path: Path) -> None:
    namespace: dict[str, object] = {"__name__": "smollm2"}
    exec(compile(SCRIPT.read_text(encoding="utf-8"), SCRIPT.name, "exec"), namespace)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=99, tie_word_embeddings=True, **shape))
    model.config.quantization_config = {"quant_method": "gguf"}  # what transformers leaves in the configuration
    namespace["save_plain"](model, character_tokenizer(), tmp_path)  # type: ignore[operator]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert getattr(loaded.config, "quantization_config", None) is None
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name]), name
    assert AutoTokenizer.from_pretrained(tmp_path).eos_token == "<eos>"
