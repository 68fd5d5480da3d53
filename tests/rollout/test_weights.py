"""Weights on their way to another process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from gspo_cli.rollout.vllm.weights import named_weights, write_weights


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_written_is_what_the_trainer_holds(tiny_moe: PreTrainedModel, file: int, dtype: torch.dtype) -> None:
    os.write(file, b"longer than what follows" * 100_000)
    count = write_weights(tiny_moe, dtype, file)
    read = load_file(f"/proc/self/fd/{file}")
    expected = {name: p.detach().to(dtype) for name, p in tiny_moe.named_parameters()}
    assert count == len(read) == len(expected)
    assert "lm_head.weight" not in read  # tied: once is enough
    for name, tensor in expected.items():
        assert read[name].dtype == dtype
        assert torch.equal(read[name], tensor)


def test_both_ways_hand_over_the_same(tiny_dense: PreTrainedModel, file: int) -> None:
    write_weights(tiny_dense, torch.float32, file)
    read = load_file(f"/proc/self/fd/{file}")
    named = dict(named_weights(tiny_dense, torch.float32))
    assert list(named) == [n for n, _ in tiny_dense.named_parameters()]
    assert all(torch.equal(read[name], tensor) for name, tensor in named.items())
    assert not any(t.requires_grad for t in named.values())
