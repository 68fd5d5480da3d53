"""Folders of saved adapters, in peft's format, and the model that they belong to."""

from __future__ import annotations

from pathlib import Path

from torch import nn
from transformers import PreTrainedModel

from gspo_cli.errors import GspoError
from gspo_cli.models.lora import require_peft


def is_adapter(path: str | Path) -> bool:
    """Whether a folder holds adapters instead of a whole model."""
    return (Path(path) / "adapter_config.json").is_file()


def refuse_adapter(path: str | Path, what: str) -> None:
    """Errors: GspoError when `what` is to start from saved adapters."""
    if is_adapter(path):
        raise GspoError(
            f"{what} cannot start from the adapters in {path}",
            "a start model is a whole one: the KL penalty and new adapters refer to it",
            "merge them first, peft's merge_and_unload() does (docs/lora.md), and start from that folder",
        )


def adapter_base(path: Path) -> tuple[str, str | None]:
    """The folder or hub name, and the revision, of the model that saved adapters belong to.

    Errors: GspoError when peft or the weights are missing, or for adapters that are not LoRA's.
    """
    require_peft(f"the adapter folder {path}")
    from peft import PeftConfig

    try:
        config = PeftConfig.from_pretrained(str(path))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise GspoError(
            f"cannot read {path / 'adapter_config.json'}", repr(error), "save the adapters again with peft"
        ) from error
    base = config.base_model_name_or_path
    for broken, why in (
        (config.peft_type != "LORA", f"they are of the kind {config.peft_type}; this program knows LORA"),
        (not base, "their adapter_config.json names no base_model_name_or_path"),
        (not (path / "adapter_model.safetensors").is_file(), "it has no adapter_model.safetensors"),
    ):
        if broken:
            raise GspoError(f"cannot load the adapters in {path}", why, "save them again with peft's save_pretrained")
    return str(base), config.revision


def attach(model: PreTrainedModel, path: Path) -> PreTrainedModel:
    """The model with the saved adapters in it, trainable; their values are exactly the saved ones.

    Errors: GspoError when they do not fit, or when they change the embedding or the head.
    """
    from peft import PeftModel

    try:
        adapted: PreTrainedModel = PeftModel.from_pretrained(model, str(path), is_trainable=True).get_base_model()
    except (OSError, ValueError, RuntimeError) as error:
        why = str(error).strip().splitlines()[0]
        raise GspoError(f"the adapters in {path} do not fit their model", why, "check both folders") from error
    if not isinstance(adapted.get_output_embeddings(), nn.Linear):
        raise GspoError(
            f"the adapters in {path} change the language-model head",
            "log-probabilities are computed from its weight alone, so the change would be ignored",
            "merge them into a whole model first (docs/lora.md)",
        )
    return adapted.eval()
