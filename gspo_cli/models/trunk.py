"""A model's trunk (everything below its head) on packed or padded rows, its head, and a critic on such a trunk.

B = responses, T = token positions, N = tokens fed, H = hidden width, V = vocabulary
"""

from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from gspo_cli.errors import GspoError
from gspo_cli.models.attention import packed_rows
from gspo_cli.models.packing import Packing
from gspo_cli.models.precision import recompute_contexts

MODEL_ERRORS = (RuntimeError, TypeError, ValueError, AttributeError, AssertionError, LookupError)
"""What the code of models and of libraries that change them raises where something does not fit."""


def one_line(error: Exception) -> str:
    """An error's class and text, cut off after 200 characters."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def trunk_of(model: nn.Module) -> nn.Module:
    """The part of a language model whose hidden states its head takes: OPT's is not its base model, but the decoder."""
    parts = [model.get_decoder(), model.base_model, *model.children()] if isinstance(model, PreTrainedModel) else []
    inner = (part for part in parts if isinstance(part, PreTrainedModel) and part is not model)
    found: nn.Module = next(inner, model)
    return found


def layers_of(model: nn.Module) -> nn.ModuleList:
    """The decoder layers: the longest list of modules in the trunk. Errors: ValueError for a model without any."""
    trunk = trunk_of(model)
    lists = [child for child in trunk.modules() if isinstance(child, nn.ModuleList)]
    if not lists:
        raise ValueError(f"{type(model).__name__} has no list of layers")
    if len(lists) == 1:
        return lists[0]
    return max(lists, key=lambda child: (sum(p.numel() for p in child.parameters()), len(child)))


def last_hidden(trunk: nn.Module, input_ids_BT: Tensor, packing: Packing | None) -> Tensor:
    """The hidden states of every position fed, one after the other: [N, width], or [B * T, width] without packing.

    Rows are padded on the right, where causal attention cannot look, so there is no attention mask.
    """
    # use_cache must be set: with the configuration's default, packed rows would silently attend to each other
    inputs: dict[str, Any] = {"attention_mask": None, "use_cache": False}
    if packing is None:
        inputs |= {"input_ids": input_ids_BT}
    else:
        inputs |= {"input_ids": packing.input_ids, "position_ids": packing.position_ids, "packing": packing}
    with recomputing(trunk), packed_rows(packing is not None):
        out = trunk(**inputs)
    hidden: Tensor = out[0]
    return hidden.flatten(0, 1)


class TrunkOutput(UserDict[str, Any]):
    """What a trunk returns, as far as a head asks for it: hidden states, and None for all else."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__(last_hidden_state=hidden)
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def __getitem__(self, key: Any) -> Any:
        return self.last_hidden_state if key in (0, "last_hidden_state") else None


def head_of(model: PreTrainedModel) -> list[nn.Module]:
    """The modules above a language model's trunk."""
    below = {model, *trunk_of(model).modules()}
    return [module for module in model.modules() if module not in below]


def head_logits(model: PreTrainedModel, hidden_NH: Tensor) -> Tensor:
    """The logits of hidden states, [N, V], by the model's own code: with its bias, its scale and its soft cap.

    The model's forward runs as it is, but its trunk returns the hidden states given here.
    """
    if getattr(model, "float32_head", None):
        hidden_NH = hidden_NH.float()
    trunk, inputs = trunk_of(model), torch.zeros(1, len(hidden_NH), dtype=torch.long, device=hidden_NH.device)
    own = trunk.__dict__.get("forward")
    trunk.__dict__["forward"] = lambda *_, **__: TrunkOutput(hidden_NH[None])
    try:
        # the class's, since a sharded model's own forward is another function
        logits: Tensor = type(model).forward(model, input_ids=inputs, use_cache=False).logits
    finally:
        if own is None:
            del trunk.__dict__["forward"]
        else:
            trunk.__dict__["forward"] = own
    return logits[0]


@contextmanager
def recomputing(trunk: nn.Module) -> Iterator[None]:
    """Within the context, a trunk with gradient checkpointing keeps only its layers' inputs, if it is differentiated.

    transformers applies checkpointing in training mode only, and silently drops the sampler's cache in that mode. So
    only the layers themselves are in it, and no longer than a pass: the parts of a layer would add noise there (Phi-MoE
    draws its experts).
    """
    wanted = torch.is_grad_enabled() and bool(getattr(trunk, "is_gradient_checkpointing", False))
    switched = [m for m in trunk.modules() if wanted and getattr(m, "gradient_checkpointing", False) and not m.training]
    for module in switched:
        module.training = True
    try:
        yield
    finally:
        for module in switched:
            module.training = False


def enable_recompute(model: PreTrainedModel) -> None:
    """Switches gradient checkpointing on for every decoder layer; replayed expert choices are then replayed twice.

    A layer is in training mode during such a pass. A dropout of its own would act then and put noise into the ratios,
    so it is set to 0, in modules and where a model keeps its probability as a number (OPT).
    Errors: GspoError for an architecture whose layers cannot be recomputed.
    """
    if not model.supports_gradient_checkpointing:
        raise GspoError(
            f"train.recompute with {type(model).__name__}",
            "transformers cannot recompute the layers of this architecture",
            "remove train.recompute, and lower train.micro_batch_tokens if memory runs out",
        )
    model.gradient_checkpointing_enable()
    for module in model.modules():
        if hasattr(module, "gradient_checkpointing"):
            contexts = partial(recompute_contexts, module)
            module._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, context_fn=contexts)
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("dropout" in name or "layerdrop" in name):
                setattr(module, name, 0.0)


def head_dim(model: PreTrainedModel) -> int | None:
    """Width of an attention head, None for a model without any (Mamba)."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    return getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else None)


class ValueModel(nn.Module):
    """PPO's critic: a trunk with a scalar head, which starts at 0 and is in float32 whatever the trunk's precision."""

    def __init__(self, trunk: PreTrainedModel) -> None:
        super().__init__()
        self.trunk = trunk
        # OPT may project its hidden states once more before the head
        width = getattr(trunk.config, "word_embed_proj_dim", None) or trunk.config.hidden_size
        self.head = nn.Linear(width, 1).to(trunk.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @property
    def base_model(self) -> PreTrainedModel:
        """The trunk, under its name in a language model."""
        return self.trunk


def token_values(model: ValueModel, input_ids_BT: Tensor, packing: Packing | None) -> Tensor:
    """The value after each position fed: [N, 1] in float32. Call it through `sharding.run_forward`."""
    values_N1: Tensor = model.head(last_hidden(model.trunk, input_ids_BT, packing).float())
    return values_N1
