"""Weights on their way to another process."""

from __future__ import annotations

import os

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from gspo_cli.rollout.vllm.weights import WeightStream, named_weights, write_weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_file_and_a_stream_hand_over_what_the_trainer_holds(tiny_moe: PreTrainedModel, dtype: torch.dtype) -> None:
    file = os.memfd_create("test")
    os.write(file, b"longer than what follows" * 100_000)
    count = write_weights(tiny_moe, dtype, file)
    read, named = load_file(f"/proc/self/fd/{file}"), dict(named_weights(tiny_moe, dtype))
    os.close(file)
    stream = WeightStream()
    stream.dtype = dtype
    stream.begin(tiny_moe)
    for _ in range(2):  # each pass anew, as it was announced
        assert [(name, x.dtype, tuple(x.shape)) for name, x in stream] == [tuple(facts) for facts in stream.metadata()]
    expected = {name: p.detach().to(dtype) for name, p in tiny_moe.named_parameters()}
    assert count == len(read) == len(expected) and list(named) == list(expected)
    assert "lm_head.weight" not in read  # tied: once is enough
    for name, tensor in expected.items():
        assert read[name].dtype == dtype and not named[name].requires_grad
        assert torch.equal(read[name], tensor) and torch.equal(named[name], tensor)
