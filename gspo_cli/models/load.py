"""Load a policy and its tokenizer from a Hugging Face folder or hub name, on one rank or sharded over several."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from gspo_cli.config import ModelConfig, Recipe
from gspo_cli.distributed import Ranks
from gspo_cli.errors import GspoError
from gspo_cli.hub import prepare_hub
from gspo_cli.models.adapters import is_adapter
from gspo_cli.models.admission import Paths, admit, paths_of, use_paths
from gspo_cli.models.device import pick_device
from gspo_cli.models.files import MAX_TOKEN_ID, check_model_folder, check_source, check_tokenizer, loading, not_floating
from gspo_cli.models.lora import adapt, adapter_base, attach
from gspo_cli.models.precision import compute_in
from gspo_cli.models.remote_code import code_arguments
from gspo_cli.models.sharding import Model, copy_full, full_tensor, shard
from gspo_cli.models.trunk import ValueModel, head_of, trunk_of

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

REPORTED: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
"""Report how files and model differ, instead of an error."""
SAVED_TABLES = re.compile(r"(inv_freq|masked_bias|causal_mask|attn\.bias|attention\.bias)$")
MOST_BUFFERS = 1 << 31
"""Bytes of tables that a model computes for itself, such as masks and rotary angles."""


def load_policy(config: ModelConfig, path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and tokenizer in `path`, ready to train, its passes in the precision that the configuration names; for
    a folder of adapters, their base model with them attached.

    Errors: GspoError when the folder holds no model, no tokenizer, or a model without an end-of-sequence token.
    """
    source, local = str(path), Path(path).is_dir()
    check_source(source, config.revision)
    if is_adapter(path):
        base, revision = adapter_base(Path(path))
        model, _ = load_policy(config.model_copy(update={"revision": revision}), base)
        return attach(model, Path(path)), load_tokenizer(source, None, local)
    tokenizer = load_tokenizer(source, config.revision, local)
    with loading(f"the model {source}", source):
        # every architecture has eager attention, while admission chooses the one that is used
        from_files = partial(
            AutoModelForCausalLM.from_pretrained, source, revision=config.revision, dtype=getattr(torch, config.dtype),
            use_safetensors=True, attn_implementation="eager", **code_arguments(source),
        )  # fmt: skip
        with torch.device("meta"):  # a configuration can ask for any amount of memory
            require_same_weights(source, *from_files(device_map="meta", **REPORTED))
        model = from_files()
    require_finite_weights(source, model)
    stop_ids(model, tokenizer)
    keep_weights(model)
    model = model.to(pick_device(config.device)).eval()
    admit(model, source)
    set_precision(model, config)
    return model, tokenizer


def set_precision(model: PreTrainedModel, config: ModelConfig) -> None:
    """Passes and head compute as the configuration says."""
    if config.compute not in (None, config.dtype) or config.float32_head:
        head = head_of(model) if config.float32_head else []
        compute_in(model, getattr(torch, config.compute or config.dtype), head)


def keep_weights(model: PreTrainedModel) -> None:
    """Keeps RWKV from dividing weights of its later layers in place, against overflow in half precision: a checkpoint
    would hold the divided ones, and they would be divided again when it is loaded."""
    if getattr(model.config, "rescale_every", 0):
        model.config.rescale_every = 0


def require_same_weights(source: str, model: PreTrainedModel, report: dict[str, Any]) -> None:
    """Errors: GspoError where the files hold other weights than the model, which has no memory yet, would get by its
    config.json: transformers would initialise what is missing at random, leave out what is left over, and take whole
    numbers for weights."""
    shapes = [f"{name}: {[*found]} instead of {[*wanted]}" for name, found, wanted in report["mismatched_keys"]]
    for found, message, why in (
        (shapes, f"cannot load the model {source}", "its weights have other shapes than its config.json says:"),
        (report["missing_keys"], f"weights of the model {source} are not in its files", "random values would replace"),
        (surplus(model, report["unexpected_keys"]), f"{source} has more weights than its model", "it would leave out"),
        (whole_numbers(source, model), f"{source} has weights that are whole numbers", "instead of fractions:"),
    ):
        if names := sorted(found):
            raise GspoError(
                message, f"{why} {', '.join(names[:3])}{', ...' if names[3:] else ''}",
                "take config.json and the weights from the same model, as save_pretrained wrote them",
            )  # fmt: skip
    if (size := sum(buffer.nbytes for buffer in model.buffers())) > MOST_BUFFERS:
        raise GspoError(
            f"cannot load the model {source}", f"by its config.json, masks and the like would take {size:.2g} bytes",
            "copy or download config.json again",
        )  # fmt: skip


def surplus(model: PreTrainedModel, unexpected: Iterable[str]) -> list[str]:
    """Of the files' weights that the model has not: those of its layers, be it of one too many, and of its other parts.

    Towers for images, extra heads and the like are no part of a language model, nor are tables that older versions
    of transformers saved."""
    kept = set(model.state_dict())
    lists = tuple(f"{name}." for name, part in model.named_modules() if isinstance(part, torch.nn.ModuleList))
    parts, tables = {name.rpartition(".")[0] for name in kept}, dict(model.named_buffers())

    def is_own(name: str) -> bool:
        is_table = name in tables or SAVED_TABLES.search(name)
        return not is_table and (name.startswith(lists) or name.rpartition(".")[0] in parts)

    return [key for key in unexpected if is_own(key) or is_own(f"{model.base_model_prefix}.{key}")]


def whole_numbers(source: str, model: PreTrainedModel) -> set[str]:
    """The model's floating-point weights for which its folder has other numbers, unless it is quantized."""
    shapes = not_floating(Path(source)) if getattr(model, "hf_quantizer", None) is None else {}
    if not shapes:
        return set()
    tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    _, report = type(model).from_pretrained(
        None, config=model.config, state_dict=tensors, device_map="meta", **REPORTED
    )
    floating = {name for name, weight in model.state_dict().items() if weight.is_floating_point()}
    return floating - set(report["missing_keys"])


def require_finite_weights(source: str, model: PreTrainedModel) -> None:
    """Errors: GspoError for a weight that is NaN or infinite, even if only some tokens would meet it."""
    if bad := next((name for name, weight in model.named_parameters() if not bool(weight.isfinite().all())), None):
        raise GspoError(
            f"the model {source} has weights that are NaN or infinite", f"in {bad}", "copy or download it again"
        )


def load_tokenizer(source: str, revision: str | None, local: bool) -> PreTrainedTokenizerBase:
    """The tokenizer of a model. Errors: GspoError when there is none, or when it has no end-of-sequence token."""
    files = ("tokenizer.json", "tokenizer.model", "vocab.json")
    if local and not any((Path(source) / f).is_file() for f in files):
        raise GspoError(
            f"no tokenizer in {source}",
            f"the folder has none of {', '.join(files)}",
            "save the tokenizer there too: tokenizer.save_pretrained(FOLDER)",
        )
    if local:
        check_model_folder(Path(source))
        check_tokenizer(Path(source))
    else:
        prepare_hub()
    with loading(f"the tokenizer of {source}", source):
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, **code_arguments(source))
    if tokenizer.eos_token_id is None:
        raise GspoError(
            f"the tokenizer of {source} names no end-of-sequence token",
            "responses could then end only at the length limit",
            "set eos_token in its tokenizer_config.json",
        )
    return tokenizer


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every token id that ends a response: the generation config's, the model config's and the tokenizer's.

    Errors: GspoError for what is no token id.
    """
    stops: set[int] = {tokenizer.eos_token_id}
    for config in (model.generation_config, model.config):
        ids = getattr(config, "eos_token_id", None)
        stops.update(ids if isinstance(ids, list | tuple) else [] if ids is None else [ids])
    if wrong := [i for i in stops if type(i) is not int or not -1 <= i <= MAX_TOKEN_ID]:
        raise GspoError(
            f"the model's eos_token_id holds {wrong[0]!r:.80}", "it is no token's number",
            "correct it in its config.json and generation_config.json",
        )  # fmt: skip
    return frozenset(stops)


def weights_hash(model: PreTrainedModel) -> str:
    """sha256 over the names and bytes of all parameters, in name order; all ranks of a sharded model must call it."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(full_tensor(tensor.detach()).cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 over the vocabulary and the chat template."""
    vocabulary = sorted((i, token) for token, i in tokenizer.get_vocab().items())
    return hashlib.sha256(repr((vocabulary, tokenizer.chat_template)).encode()).hexdigest()


def sharded_load(
    recipe: Recipe, path: str | Path, ranks: Ranks
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, str]:
    """The model with its weights, and the recipe's adapters if any, sharded over the ranks; its tokenizer; the hash of
    the full weights without adapters. Only rank 0's host needs memory for a full copy.

    Errors: as `load_policy`, on all ranks.
    """
    model, source, sha256 = read_on_rank0(recipe, path, ranks)
    shard_for_recipe(model, source, recipe, ranks)
    return model, load_tokenizer(str(path), recipe.model.revision, Path(path).is_dir()), sha256


def sharded_load_value(recipe: Recipe, path: str | Path, ranks: Ranks) -> ValueModel:
    """The same model's trunk with a scalar head. Errors: as `load_policy`, on all ranks."""
    model, source, _ = read_on_rank0(recipe, path, ranks)
    value = ValueModel(trunk_of(model))
    shard_for_recipe(value, ValueModel(trunk_of(source)) if source else None, recipe, ranks)
    return value


def read_on_rank0(
    recipe: Recipe, path: str | Path, ranks: Ranks
) -> tuple[PreTrainedModel, PreTrainedModel | None, str]:
    """The model's skeleton on all ranks, the model itself on rank 0 (None on the others), and the hash of its weights
    without adapters."""
    source: list[PreTrainedModel] = []

    def load() -> tuple[dict[str, Any], str]:
        model, _ = load_policy(recipe.model.model_copy(update={"device": "cpu"}), path)
        sha256 = weights_hash(model)
        adapt(model, recipe, path)
        source.append(model)
        return asdict(paths_of(model)), sha256

    paths, sha256 = ranks.broadcast(load)
    return skeleton(recipe, path, Paths(**paths)), source[0] if source else None, sha256


def shard_for_recipe(model: Model, source: Model | None, recipe: Recipe, ranks: Ranks) -> None:
    """Shards a skeleton with the recipe's device, precision and `train.divide`."""
    compute = getattr(torch, recipe.model.compute or recipe.model.dtype)
    shards = ranks.local if recipe.train.divide == "machine" else ranks.size
    shard(model, source, pick_device(recipe.model.device), compute, shards, recipe.model.float32_head)


def skeleton(recipe: Recipe, path: str | Path, paths: Paths) -> PreTrainedModel:
    """The model without memory for its weights."""
    model = AutoModelForCausalLM.from_pretrained(
        str(path), revision=recipe.model.revision, dtype=getattr(torch, recipe.model.dtype), device_map="meta",
        attn_implementation="eager", **code_arguments(path),
    )  # fmt: skip
    keep_weights(model)
    use_paths(model, paths)
    adapt(model, recipe, path)
    return model.eval()  # type: ignore[no-any-return]


def replica(recipe: Recipe, path: str | Path, model: PreTrainedModel) -> PreTrainedModel:
    """A full copy of a sharded model, for sampling."""
    copy = skeleton(recipe, path, paths_of(model))
    copy.to_empty(device=model.device)
    copy.tie_weights()
    for buffer, known in zip(copy.buffers(), model.buffers(), strict=True):
        buffer.copy_(known)
    copy_full(model, copy)
    set_precision(copy, recipe.model)
    return copy.requires_grad_(False)
