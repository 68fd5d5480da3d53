"""Tiny mixture-of-experts models with random weights, one of each way that transformers builds and weighs them."""

import tomllib
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

DATA: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SHAPE, FAMILIES = DATA["shape"], DATA["families"]


def build(name: str) -> PreTrainedModel:
    """A model of the family, with weights wide enough that experts matter, in eval mode."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name.split()[0], **SHAPE | FAMILIES[name])
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3) if parameter.dim() > 1 else parameter.add_(0.01)
    return model.eval()
