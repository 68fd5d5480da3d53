"""LoRA through peft: small trained matrices beside frozen weights, in the model itself (arXiv 2106.09685).

W x becomes W x + alpha / rank * B A x, with A random and B = 0 at the start, so the policy starts as the start model.
The layers are exchanged in place: everything that holds the model, its trunk or its routers goes on working.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import PreTrainedModel

from gspo_cli.errors import GspoError
from gspo_cli.seeds import derive_seed

if TYPE_CHECKING:
    from gspo_cli.config import Lora, Recipe

OF_EXPERTS = frozenset({"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""In a mixture-of-experts model peft takes these names for the experts' weights, whatever else is called so."""


def require_peft(what: str) -> None:
    """Errors: GspoError when peft is not installed; `what` = what needs it."""
    if find_spec("peft") is None:
        raise GspoError(f"{what} needs the package peft", "it is optional and not installed", "pip install peft")


def adapt(model: PreTrainedModel, recipe: Recipe, start: str | Path) -> None:
    """Adds the recipe's adapters, if it has any.

    Errors: as `add_lora`.
    """
    if recipe.model.lora is not None:
        add_lora(model, recipe.model.lora, start, recipe.model.revision, derive_seed(recipe.seed, "lora"))


def add_lora(model: PreTrainedModel, lora: Lora, start: str | Path, revision: str | None, seed: int) -> None:
    """Freezes the model and adds adapters, the same for the same seed; `start` is noted in their checkpoint.

    They are kept in float32 where the model is in bfloat16, in which the small steps of an optimizer would be lost.
    Errors: GspoError for a layer that the model does not have, or for experts in a dense model.
    """
    from peft import LoraConfig

    experts = expert_weights(model)
    if lora.experts and not experts:
        raise GspoError(
            f"model.lora.experts with {type(model).__name__}",
            "it has no experts whose weights are one tensor",
            "remove model.lora.experts",
        )
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=chosen_layers(model, lora),
        target_parameters=sorted(experts) if lora.experts else None,
        revision=revision,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model.add_adapter(config)
    config.base_model_name_or_path = str(Path(start).resolve()) if Path(start).is_dir() else str(start)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))


def chosen_layers(model: PreTrainedModel, lora: Lora) -> list[str]:
    """The names of the linear layers that get adapters: the recipe's, or all.

    Errors: GspoError naming those that the model has.
    """
    known = linear_layers(model)
    unknown = set(lora.targets or ()) - known
    if unknown:
        raise GspoError(
            f"model.lora.targets = {sorted(unknown)} with {type(model).__name__}",
            f"its linear layers that can have adapters are {', '.join(sorted(known))}"
            + ("; experts have a switch of their own, model.lora.experts" if expert_weights(model) else ""),
            "name some of these, or remove model.lora.targets for all of them",
        )
    return sorted(lora.targets or known)


def linear_layers(model: PreTrainedModel) -> set[str]:
    """The last names of all linear layers of the trunk, `q_proj` and the like.

    Never the head: log-probabilities are computed from its weight. In a mixture of experts never the names that peft
    takes for the experts'.
    """
    names = {n.rpartition(".")[2] for n, m in model.base_model.named_modules() if isinstance(m, nn.Linear)}
    return names - OF_EXPERTS if expert_weights(model) else names


def expert_weights(model: PreTrainedModel) -> set[str]:
    """The last three names of the parameters that hold one matrix for each expert, `mlp.experts.down_proj`."""
    stacked = [n.split(".") for n, p in model.base_model.named_parameters() if p.ndim == 3]
    return {".".join(names[-3:]) for names in stacked if names[-2] == "experts"}


@contextmanager
def adapters_off(model: PreTrainedModel) -> Iterator[None]:
    """Within the context the model is the one it started from; nothing changes for one without adapters."""
    if not hasattr(model, "peft_config"):
        yield
        return
    model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()
