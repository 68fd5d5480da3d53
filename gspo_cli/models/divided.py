"""Load a policy or a critic over several ranks: rank 0 reads it, all hold their share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from gspo_cli.models.foreign_code import code_arguments
from gspo_cli.models.load import load_policy, load_tokenizer, pick_device, weights_hash
from gspo_cli.models.lora import adapt
from gspo_cli.models.sharding import Model, copy_whole, divide
from gspo_cli.models.value import ValueModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gspo_cli.config import Recipe
    from gspo_cli.ranks import Ranks


class Read(NamedTuple):
    """A start model, before it is divided."""

    skeleton: PreTrainedModel
    source: PreTrainedModel | None
    """The model itself, on rank 0."""
    sha256: str
    """Of its weights, without adapters."""


class Divided(NamedTuple):
    """What `load_divided` gives."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    sha256: str
    """Of the whole weights, without adapters."""


def load_divided(recipe: Recipe, path: str | Path, ranks: Ranks) -> Divided:
    """The model with its weights, and its adapters if the recipe has any, divided over the ranks, in the memory of one
    whole copy on rank 0's host.

    Errors: as `load_policy`, on all ranks.
    """
    read = read_on_first(recipe, path, ranks)
    divide_as_asked(read.skeleton, read.source, recipe, ranks)
    tokenizer = load_tokenizer(str(path), recipe.model.revision, Path(path).is_dir())
    return Divided(read.skeleton, tokenizer, read.sha256)


def load_divided_value(recipe: Recipe, path: str | Path, ranks: Ranks) -> ValueModel:
    """The same model's trunk with a scalar head.

    Errors: as `load_policy`, on all ranks.
    """
    read = read_on_first(recipe, path, ranks)
    value = ValueModel(read.skeleton.base_model)
    divide_as_asked(value, ValueModel(read.source.base_model) if read.source else None, recipe, ranks)
    return value


def read_on_first(recipe: Recipe, path: str | Path, ranks: Ranks) -> Read:
    """Reads the model on rank 0, and gives all ranks its shape."""
    source: list[PreTrainedModel] = []

    def load() -> dict[str, Any]:
        model, _ = load_policy(recipe.model.model_copy(update={"device": "cpu"}), path)
        sha256 = weights_hash(model)
        adapt(model, recipe, path)
        source.append(model)
        return {"attention": model.config._attn_implementation, "sha256": sha256}

    facts = ranks.from_first(load)
    return Read(skeleton(recipe, path, facts["attention"]), source[0] if source else None, facts["sha256"])


def divide_as_asked(model: Model, source: Model | None, recipe: Recipe, ranks: Ranks) -> None:
    """Divides a skeleton as the recipe says."""
    compute = getattr(torch, recipe.model.compute or recipe.model.dtype)
    together = ranks.local if recipe.train.divide == "machine" else ranks.size
    divide(model, source, pick_device(recipe.model.device), compute, together)


def skeleton(recipe: Recipe, path: str | Path, attention: str) -> PreTrainedModel:
    """The model without memory for its weights."""
    model = AutoModelForCausalLM.from_pretrained(
        str(path), revision=recipe.model.revision, dtype=getattr(torch, recipe.model.dtype), device_map="meta",
        attn_implementation="sdpa", **code_arguments(path),
    )  # fmt: skip
    model.set_attn_implementation(attention)
    adapt(model, recipe, path)
    return model.eval()  # type: ignore[no-any-return]


def replica(recipe: Recipe, path: str | Path, model: PreTrainedModel) -> PreTrainedModel:
    """A whole copy of a divided model, for sampling."""
    copy = skeleton(recipe, path, model.config._attn_implementation)
    copy.to_empty(device=model.device)
    copy.tie_weights()
    for buffer, known in zip(copy.buffers(), model.buffers(), strict=True):
        buffer.copy_(known)
    copy_whole(model, copy)
    return copy.requires_grad_(False)
