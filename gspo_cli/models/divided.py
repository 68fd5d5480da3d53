"""Load a policy over several ranks: rank 0 reads it, all hold their share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from gspo_cli.models.foreign_code import code_arguments
from gspo_cli.models.load import load_policy, load_tokenizer, pick_device, weights_hash
from gspo_cli.models.sharding import copy_whole, divide

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gspo_cli.config import ModelConfig
    from gspo_cli.ranks import Ranks


class Divided(NamedTuple):
    """What `load_divided` gives."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    sha256: str
    """Of the whole weights."""


def load_divided(config: ModelConfig, path: str | Path, ranks: Ranks) -> Divided:
    """The model with its weights divided over the ranks, in the memory of one whole copy on rank 0's host.

    Errors: as `load_policy`, on all ranks.
    """
    source: list[PreTrainedModel] = []

    def load() -> dict[str, Any]:
        model, _ = load_policy(config.model_copy(update={"device": "cpu"}), path)
        source.append(model)
        return {"attention": model.config._attn_implementation, "sha256": weights_hash(model)}

    facts = ranks.from_first(load)
    model = skeleton(config, path, facts["attention"])
    compute = getattr(torch, config.compute or config.dtype)
    divide(model, source[0] if source else None, pick_device(config.device), compute)
    tokenizer = load_tokenizer(str(path), config.revision, Path(path).is_dir())
    return Divided(model, tokenizer, facts["sha256"])


def skeleton(config: ModelConfig, path: str | Path, attention: str) -> PreTrainedModel:
    """The model without memory for its weights."""
    model = AutoModelForCausalLM.from_pretrained(
        str(path), revision=config.revision, dtype=getattr(torch, config.dtype), device_map="meta",
        attn_implementation="sdpa", **code_arguments(path),
    )  # fmt: skip
    model.set_attn_implementation(attention)
    return model.eval()  # type: ignore[no-any-return]


def replica(config: ModelConfig, path: str | Path, model: PreTrainedModel) -> PreTrainedModel:
    """A whole copy of a divided model, for sampling."""
    copy = skeleton(config, path, model.config._attn_implementation)
    copy.to_empty(device=model.device)
    copy.tie_weights()
    for buffer, known in zip(copy.buffers(), model.buffers(), strict=True):
        buffer.copy_(known)
    copy_whole(model, copy)
    return copy.requires_grad_(False)
