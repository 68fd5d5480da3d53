"""A model made small for a short trial, and put back: a few layers, a short head, short windows, float32.

Nothing is copied but what is cast.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from gspo_cli.models.trunk import layers_of

WINDOW = 4
"""Positions of a sliding window or a chunk in the trial: fewer than any row has."""
VOCABULARY = 1024
"""Token ids of the trial: a head over 50,000 would cost more than all the rest."""


@contextmanager
def shortened(model: PreTrainedModel) -> Iterator[Callable[[], None]]:
    """Within the context, a model has one layer of each kind (those up to the last new kind), a short head, and short
    windows; what the context gives puts all of it back."""
    with ExitStack() as restore:
        _shorten_windows(model, restore)
        _drop_layers(model, restore)
        _shorten_head(model, restore)
        yield restore.close


WINDOWS = ("sliding_window", "attention_chunk_size", "window_size", "attention_window_size")


def _shorten_windows(model: PreTrainedModel, restore: ExitStack) -> None:
    configs = {id(c): c for c in (model.config, model.config.get_text_config())}
    for owner in (*configs.values(), *model.modules()):
        for name in WINDOWS:
            value = vars(owner).get(name)
            if type(value) is int and value > WINDOW:
                restore.callback(setattr, owner, name, value)
                setattr(owner, name, WINDOW)


def _shorten_head(model: PreTrainedModel, restore: ExitStack) -> None:
    """Views of the weights of the first tokens, by the model's own module: what it adds or scales is seen as well."""
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or head.out_features <= VOCABULARY:
        return
    for name, whole in list(head.named_parameters(recurse=False)):
        restore.callback(setattr, head, name, whole)
        setattr(head, name, nn.Parameter(whole[:VOCABULARY], whole.requires_grad))


def _drop_layers(model: PreTrainedModel, restore: ExitStack) -> None:
    config = model.config.get_text_config()
    try:
        layers = layers_of(model)
    except ValueError:
        return
    if len(layers) != config.num_hidden_layers:
        return
    kinds = [_kind(layer, i, config) for i, layer in enumerate(layers)]
    keep = max(kinds.index(kind) for kind in kinds) + 1
    if keep < len(layers):
        restore.callback(layers.extend, list(layers)[keep:])
        restore.callback(setattr, config, "num_hidden_layers", len(layers))
        del layers[keep:]
        config.num_hidden_layers = keep


def _kind(layer: nn.Module, index: int, config: Any) -> tuple[Any, ...]:
    """What a layer computes: the modules in it with their shapes, and what the configuration lists for it."""
    listed = tuple(
        (name, value[index])
        for name, value in vars(config).items()
        if isinstance(value, list | tuple) and len(value) == config.num_hidden_layers
    )
    return _contents(layer), str(listed)


PLAIN = frozenset((int, float, str, bool, type(None)))


def _contents(module: nn.Module) -> tuple[Any, ...]:
    """A module's class, its own settings (but not which layer it is) and shapes, and the same of its parts."""
    settings = tuple(
        (name, value)
        for name, value in vars(module).items()
        if type(value) in PLAIN and name[0] != "_" and not name.endswith(("layer_idx", "layer_id"))
    )
    shapes = tuple((name, None if p is None else p.shape) for name, p in module._parameters.items())
    parts = tuple((name, None if part is None else _contents(part)) for name, part in module._modules.items())
    return type(module), settings, shapes, parts


@contextmanager
def in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Within the context, weights of half precision are float32; of the input embeddings, those of the first tokens."""
    embeddings, whole = model.get_input_embeddings(), list[tuple[dict[str, Any], str, Any]]()
    padding = getattr(embeddings, "padding_idx", None)
    try:
        for module in model.modules():
            for stored in (module._parameters, module._buffers):
                for name, tensor in list(stored.items()):
                    if tensor is None or not tensor.is_floating_point() or tensor.dtype.itemsize > 2:
                        continue
                    whole.append((stored, name, tensor))
                    cast = (tensor[:VOCABULARY] if module is embeddings and tensor.ndim == 2 else tensor).float()
                    stored[name] = nn.Parameter(cast, False) if isinstance(tensor, nn.Parameter) else cast
        if isinstance(padding, int) and padding >= VOCABULARY:
            embeddings.padding_idx = None
        yield
    finally:
        for stored, name, tensor in whole:
            stored[name] = tensor
        if padding is not None:
            embeddings.padding_idx = padding
