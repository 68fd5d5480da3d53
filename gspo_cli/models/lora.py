"""LoRA adapters (arXiv 2106.09685) through peft: trained inside the model, saved in folders of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gspo_cli.config import Lora, Recipe
from gspo_cli.errors import GspoError
from gspo_cli.models.adapters import require_peft
from gspo_cli.models.trunk import MODEL_ERRORS, one_line
from gspo_cli.seeds import derive_seed

EXPERT_NAMES = frozenset({"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""In a mixture-of-experts model peft always takes these names to mean the experts' weights."""
MAMBA_KINDS = frozenset({"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"})
MAMBA_NAMES = frozenset({"dt_proj", "out_proj"})
"""Layers of these architectures that are never called: kernels take their weights. peft refuses the second."""


def adapt(model: PreTrainedModel, recipe: Recipe, start: str | Path) -> None:
    """Adds the recipe's adapters, if any. Errors: as `add_lora`."""
    if recipe.model.lora is not None:
        add_lora(model, recipe.model.lora, start, recipe.model.revision, derive_seed(recipe.seed, "lora"))


def add_lora(model: PreTrainedModel, lora: Lora, start: str | Path, revision: str | None, seed: int) -> None:
    """Freezes the model and adds adapters, the same for the same seed; `start` is recorded in their checkpoint.

    They stay in float32 even if the model is in bfloat16, where an optimizer's small steps would be lost.
    Errors: GspoError for a layer that the model does not have or peft cannot adapt, or for experts in a dense model.
    """
    from peft import LoraConfig

    experts = expert_weights(model)
    if lora.experts and not experts:
        raise GspoError(
            f"model.lora.experts with {type(model).__name__}",
            "it has no experts with all their weights in one tensor",
            "remove model.lora.experts",
        )
    known = linear_layers(model)
    if unknown := set(lora.targets or ()) - known:
        raise GspoError(
            f"model.lora.targets = {sorted(unknown)} with {type(model).__name__}",
            f"its linear layers that can have adapters are {', '.join(sorted(known))}"
            + ("; experts have their own switch, model.lora.experts" if experts else ""),
            "name some of these, or remove model.lora.targets for all of them",
        )
    targets = sorted(lora.targets or known)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=targets,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.base_model.modules()),
        target_parameters=sorted(experts) if lora.experts else None,
        revision=revision,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            model.add_adapter(config)
        except MODEL_ERRORS as error:
            raise GspoError(
                f"model.lora with {type(model).__name__}",
                f"peft cannot adapt {', '.join(targets) or 'it'}: {one_line(error)}",
                "name other layers in model.lora.targets, or remove model.lora to train all weights",
            ) from error
    config.base_model_name_or_path = str(Path(start).resolve()) if Path(start).is_dir() else str(start)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))


def linear_layers(model: PreTrainedModel) -> set[str]:
    """The last part of the name of every linear layer in the trunk, such as `q_proj`; of a numbered one the last two.

    Excluded are the head, whose weight gives the log-probabilities, in a mixture of experts `EXPERT_NAMES`, what peft
    refuses in Mamba layers, and layers that are linear by name only: routers that return several tensors (Llama 4), and
    projections by groups (DeepSeek-V4).
    """
    found: dict[str, bool] = {}
    for path, module in model.base_model.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            *_, parent, name = f".{path}".split(".")
            name = f"{parent}.{name}" if name.isdigit() else name
            found[name] = found.get(name, True) and _is_linear(module)
    names = {name for name, plain in found.items() if plain}
    names -= MAMBA_NAMES if model.config.model_type in MAMBA_KINDS else set()
    return names - EXPERT_NAMES if expert_weights(model) else names


@torch.no_grad()
def _is_linear(module: nn.Linear | Conv1D) -> bool:
    """Whether a layer that an architecture defines itself maps one vector to one vector."""
    if not type(module).__module__.startswith("transformers.models.") or not isinstance(module, nn.Linear):
        return True
    try:
        out = module(module.weight.new_zeros(1, module.in_features))
    except MODEL_ERRORS:
        return False
    return isinstance(out, Tensor) and out.shape == (1, module.out_features)


def expert_weights(model: PreTrainedModel) -> set[str]:
    """The last three parts of the names of parameters with one matrix per expert, such as `mlp.experts.down_proj`."""
    stacked = [n.split(".") for n, p in model.base_model.named_parameters() if p.ndim == 3]
    return {".".join(names[-3:]) for names in stacked if names[-2] == "experts"}


@contextmanager
def adapters_off(model: PreTrainedModel) -> Iterator[None]:
    """Within the context the model computes without its adapters, if it has any."""
    if not hasattr(model, "peft_config"):
        yield
        return
    model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()


def adapter_base(path: Path) -> tuple[str, str | None]:
    """The folder or hub name of the model that saved adapters belong to, and its revision.

    Errors: GspoError when peft or the weights are missing, or for adapters of another kind than LoRA.
    """
    require_peft(f"the adapter folder {path}")
    from peft import PeftConfig

    try:
        config = PeftConfig.from_pretrained(str(path))
    except Exception as error:  # peft hands any value on to any class
        raise GspoError(
            f"cannot read {path / 'adapter_config.json'}", repr(error), "save the adapters again with peft"
        ) from error
    base = config.base_model_name_or_path
    for broken, why in (
        (config.peft_type != "LORA", f"they are of the kind {config.peft_type}; only LORA is supported"),
        (not base, "their adapter_config.json names no base_model_name_or_path"),
        (not (path / "adapter_model.safetensors").is_file(), "it has no adapter_model.safetensors"),
    ):
        if broken:
            raise GspoError(f"cannot load the adapters in {path}", why, "save them again with peft's save_pretrained")
    return str(base), config.revision


def attach(model: PreTrainedModel, path: Path) -> PreTrainedModel:
    """The model with the saved adapters, trainable and exactly as saved.

    Errors: GspoError when they do not fit, or when they change the embedding or the head.
    """
    from peft import PeftModel

    try:
        adapted: PreTrainedModel = PeftModel.from_pretrained(model, str(path), is_trainable=True).get_base_model()
    except Exception as error:  # libraries raise almost anything over a broken file
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise GspoError(f"the adapters in {path} do not fit their model", why, "check both folders") from error
    if not isinstance(adapted.get_output_embeddings(), nn.Linear):
        raise GspoError(
            f"the adapters in {path} change the language-model head",
            "log-probabilities are computed from its weight alone, so the change would be ignored",
            "merge them into a full model first (docs/real-models.md)",
        )
    return adapted.eval()
