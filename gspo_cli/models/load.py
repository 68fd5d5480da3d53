"""Load a policy and its tokenizer from a Hugging Face folder or hub name, and identify them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from gspo_cli.errors import GspoError
from gspo_cli.models.adapter_folder import adapter_base, attach, is_adapter
from gspo_cli.models.foreign_code import code_arguments, code_hint
from gspo_cli.models.packing import enable_packing
from gspo_cli.models.sharding import whole

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gspo_cli.config import ModelConfig

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def pick_device(name: str) -> torch.device:
    """`auto` is cuda where there is one, else cpu.

    Errors: GspoError for a device that torch does not know or that is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise GspoError(f"cannot use device {name!r}", str(error).splitlines()[0], "model.device = 'auto'") from error
    return device


def load_policy(config: ModelConfig, path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and tokenizer in `path`, ready to train; of a folder of adapters, their base model with them in it.

    Errors: GspoError when the folder holds no model, no tokenizer, or a model without an end-of-sequence token.
    """
    source, local = str(path), Path(path).is_dir()
    if is_adapter(path):
        base, revision = adapter_base(Path(path))
        model, _ = load_policy(config.model_copy(update={"revision": revision}), base)
        return attach(model, Path(path)), load_tokenizer(source, None, local)
    if (looks_local(source) or local) and not (Path(path) / "config.json").is_file():
        raise GspoError(
            f"no model in {source}",
            "the folder does not exist" if not local else "it has no config.json",
            "give a Hugging Face model folder, or a hub name such as Qwen/Qwen3-0.6B",
        )
    tokenizer = load_tokenizer(source, config.revision, local)
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            source, revision=config.revision, dtype=getattr(torch, config.dtype), use_safetensors=True,
            attn_implementation="sdpa", output_loading_info=True, **code_arguments(source),
        )  # fmt: skip
    except (OSError, ValueError, RuntimeError) as error:
        raise load_error(f"cannot load the model {source}", source, error) from error
    refuse_invented(source, found)
    device = pick_device(config.device)
    model = model.to(device).eval()
    enable_packing(model)
    return model, tokenizer


def refuse_invented(source: str, found: dict[str, Any]) -> None:
    """Errors: GspoError for weights that are not in the files; the library gives them random values and goes on."""
    missing = sorted(found["missing_keys"]) + sorted(str(key[0]) for key in found["mismatched_keys"])
    if missing:
        raise GspoError(
            f"{len(missing)} weights of the model {source} are not in its files",
            f"{', '.join(missing[:3])}{', ...' if missing[3:] else ''} would begin with random values",
            "save the model again with save_pretrained, with the class that its configuration names",
        )


def load_tokenizer(source: str, revision: str | None, local: bool) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model.

    Errors: GspoError when there is none, or when it names no end-of-sequence token.
    """
    files = ("tokenizer.json", "tokenizer.model", "vocab.json")
    if local and not any((Path(source) / f).is_file() for f in files):
        raise GspoError(
            f"no tokenizer in {source}",
            f"the folder has none of {', '.join(files)}",
            "save the tokenizer there too: tokenizer.save_pretrained(FOLDER)",
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, **code_arguments(source))
    except (OSError, ValueError) as error:
        raise load_error(f"cannot load the tokenizer of {source}", source, error) from error
    if tokenizer.eos_token_id is None:
        raise GspoError(
            f"the tokenizer of {source} names no end-of-sequence token",
            "responses could then end by the length limit alone",
            "set eos_token in its tokenizer_config.json",
        )
    return tokenizer


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every token id that ends a response: the generation config's, the model config's and the tokenizer's."""
    found: set[int] = {tokenizer.eos_token_id}
    for config in (model.generation_config, model.config):
        ids = getattr(config, "eos_token_id", None)
        found.update(ids if isinstance(ids, list | tuple) else [] if ids is None else [ids])
    return frozenset(found)


def weights_hash(model: PreTrainedModel) -> str:
    """sha256 over the names and bytes of all parameters, in name order; all ranks of a divided model must call it."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(whole(tensor.detach()).cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 over the vocabulary and the chat template."""
    vocabulary = sorted((i, token) for token, i in tokenizer.get_vocab().items())
    return hashlib.sha256(repr((vocabulary, tokenizer.chat_template)).encode()).hexdigest()


def looks_local(source: str) -> bool:
    """Whether a name can only be a path: a hub name has the form `owner/name`, and no folder here is its owner."""
    return source.startswith((".", "/", "~")) or source.count("/") != 1 or Path(source).parts[0] in os.listdir()


def load_error(message: str, source: str, error: BaseException) -> GspoError:
    """For a model or tokenizer that cannot be loaded, or comes with code that may not be run."""
    if hint := code_hint(source, error):
        return GspoError(message, "it comes with Python code of its own, which is not run unasked; none was", hint)
    local = Path(source).is_dir()
    hint = "check the files in the folder" if local else "check the name and the network, or give a local folder"
    return GspoError(message, _first_line(error), hint)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
