"""Fixtures that several test folders share."""

from collections.abc import Iterator

import pytest
import torch
from transformers import PreTrainedModel

from gspo_cli.config import TinyModel
from gspo_cli.models.tiny import build_tiny


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are quickest, and repeatable, with one thread."""
    torch.set_num_threads(1)
    yield


@pytest.fixture(scope="session")
def tiny_moe() -> PreTrainedModel:
    """A two-layer Qwen3-MoE with random weights and the character vocabulary, in eval mode; leave it unchanged."""
    model, _ = build_tiny(TinyModel(hidden=16, layers=2, experts=6, top_k=2), seed=1)
    model.set_experts_implementation("eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # far from uniform, so that a wrong position shows
    return model.eval()


@pytest.fixture(scope="session")
def tiny_dense() -> PreTrainedModel:
    """A two-layer dense Qwen3 of the same size."""
    return build_tiny(TinyModel(kind="qwen3", hidden=16, layers=2), seed=1)[0].eval()
