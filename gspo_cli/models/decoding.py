"""Rows of a model that are continued token by token, on its fastest cache that is right: ours, its own, or none.

R = rows, P = prompts, T = positions, H = key-value heads or hidden width, D = head dimension
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from gspo_cli.models.device import upload, upload_together
from gspo_cli.models.trunk import trunk_of

Indices = NDArray[np.int64]


class Rows(Protocol):
    """Rows being decoded."""

    hidden_RH: Tensor
    """The hidden state at the last position of each row: with the model's head, the logits of its next token."""

    def step(self, sources: Indices, tokens: Indices) -> None:
        """Continues rows: row i is row `sources[i]` with `tokens[i]` appended."""


class KVCache:
    """Implements `update` and `get_seq_length`, all that a transformers attention layer needs of a cache.

    Keys and values of all layers have their final size from the start, so decoding a token writes a slice and
    concatenates nothing. Rows can be copied onto others and dropped at the end; those that stay are not moved.
    """

    def __init__(self, num_layers: int, max_rows: int, max_length: int) -> None:
        self.max_rows, self.max_length = max_rows, max_length
        self.length = 0
        self.keys_RHTD: list[Tensor | None] = [None] * num_layers
        self.values_RHTD: list[Tensor | None] = [None] * num_layers

    def update(
        self, keys_RHTD: Tensor, values_RHTD: Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Appends one layer's new positions and returns views of all its positions."""
        rows, end = keys_RHTD.shape[0], self.length + keys_RHTD.shape[2]
        if self.keys_RHTD[layer] is None:
            self.keys_RHTD[layer], self.values_RHTD[layer] = (
                x.new_empty(self.max_rows, x.shape[1], self.max_length, x.shape[3]) for x in (keys_RHTD, values_RHTD)
            )
        all_keys, all_values = self.keys_RHTD[layer], self.values_RHTD[layer]
        assert all_keys is not None and all_values is not None
        all_keys[:rows, :, self.length : end] = keys_RHTD
        all_values[:rows, :, self.length : end] = values_RHTD
        if layer == len(self.keys_RHTD) - 1:
            self.length = end
        return all_keys[:rows, :, :end], all_values[:rows, :, :end]

    def get_seq_length(self, _layer: int = 0) -> int:
        """Positions filled so far."""
        return self.length

    def copy(self, to: Tensor, source: Tensor) -> None:
        """Makes row `to[i]` a copy of row `source[i]`; a row that is written to must not be a source of another."""
        for stored in (*self.keys_RHTD, *self.values_RHTD):
            assert stored is not None
            filled = stored[:, :, : self.length]
            filled.index_copy_(0, to, filled.index_select(0, source))


class CachedRows:
    """Rows on `KVCache`: prompts of any length, padded on the left; prefixes that are equal are computed once."""

    def __init__(
        self, model: PreTrainedModel, prompts: list[tuple[int, ...]], max_new_tokens: int, max_rows: int
    ) -> None:
        """One pass over all prompts, a row each."""
        self.model, self.width = model, max(map(len, prompts))
        ids_PT = torch.zeros(len(prompts), self.width, dtype=torch.long)
        visible_PT = torch.zeros(len(prompts), self.width + max_new_tokens, dtype=torch.bool)
        for row, prompt in enumerate(prompts):  # padded on the left, so that all rows write the same cache position
            ids_PT[row, self.width - len(prompt) :] = torch.tensor(prompt)
            visible_PT[row, self.width - len(prompt) :] = True
        self.visible_RT = upload(visible_PT, model.device)
        self.length_R = upload(torch.tensor([len(p) for p in prompts]), model.device)
        self.cache = KVCache(num_layers(model), max(max_rows, len(prompts)), self.width + max_new_tokens)
        causal_TT = torch.ones(self.width, self.width, dtype=torch.bool, device=model.device).tril()
        # a padding position sees itself, or its softmax would be empty
        itself_TT = torch.eye(self.width, dtype=torch.bool, device=model.device)
        mask_PTT = (causal_TT & self.visible_RT[:, None, : self.width]) | itself_TT
        positions_PT = (self.visible_RT[:, : self.width].cumsum(1) - 1).clamp(min=0)
        self.hidden_RH = self._forward(upload(ids_PT, model.device), mask_PTT[:, None], positions_PT)

    def step(self, sources: Indices, tokens: Indices) -> None:
        """See `Rows.step`. A row must not be written to and be a source at once."""
        if np.array_equal(sources, np.arange(len(self.length_R))):
            (ids_R,) = upload_together([tokens], self.model.device)
        else:
            moved = np.flatnonzero(sources != np.arange(len(sources)))
            together = [tokens, sources, moved, sources[moved]]
            ids_R, kept_R, to, source = upload_together(together, self.model.device)
            self.cache.copy(to, source)
            self.visible_RT, self.length_R = self.visible_RT[kept_R], self.length_R[kept_R]
        mask_R11T = self.visible_RT[:, None, None, : self.cache.length + 1]
        new = self.cache.length - self.width
        self.hidden_RH = self._forward(ids_R[:, None], mask_R11T, (self.length_R + new)[:, None])

    def _forward(self, ids_RT: Tensor, mask: Tensor, positions_RT: Tensor) -> Tensor:
        """A pass that extends the cache; the mask is bool [R, 1, new positions, all positions]."""
        out = trunk_of(self.model)(
            input_ids=ids_RT, attention_mask=mask, position_ids=positions_RT, past_key_values=self.cache, use_cache=True
        )
        hidden_RH: Tensor = out[0][:, -1]
        return hidden_RH


class OwnRows:
    """Rows on the model's own cache, or none: all of one length, without padding or mask, and never reordered."""

    def __init__(self, model: PreTrainedModel, prompts: list[tuple[int, ...]], use_cache: bool) -> None:
        self.model, self.use_cache = model, use_cache
        self.ids_RT = upload(torch.tensor(prompts), model.device)
        self.past: Any = None
        self._forward(self.ids_RT)

    def step(self, sources: Indices, tokens: Indices) -> None:
        """See `Rows.step`; every row continues itself."""
        assert np.array_equal(sources, np.arange(len(self.ids_RT)))
        new_R1 = upload(torch.from_numpy(tokens), self.model.device)[:, None]
        self.ids_RT = torch.cat([self.ids_RT, new_R1], 1)
        self._forward(new_R1 if self.use_cache else self.ids_RT)

    def _forward(self, ids_RT: Tensor) -> None:
        inputs: dict[str, Any] = {"past_key_values": self.past} if self.past is not None else {}
        out = trunk_of(self.model)(input_ids=ids_RT, use_cache=self.use_cache, **inputs)
        self.past = out.past_key_values if self.use_cache else None
        self.hidden_RH: Tensor = out[0][:, -1]


class CacheSize(NamedTuple):
    """What sampling keeps in memory, in bytes: rows * (row + token * positions)."""

    token: float
    """For each position of a row."""
    row: float
    """For each row whatever its length: the states of recurrent layers."""


@torch.no_grad()
def cache_size(model: PreTrainedModel, cache: str) -> CacheSize:
    """Measured on a few tokens for the kind of cache that `admission.Paths.cache` names.

    Without a cache nothing is kept, but each token takes a pass over whole rows; they count as if every layer kept two
    hidden states.
    """
    if cache == "shared":
        return CacheSize(held_bytes(CachedRows(model, [(1,)], 0, 1).cache), 0)
    if cache == "own":
        few, many = (held_bytes(OwnRows(model, [(1,) * length], True).past) for length in MEASURED)
        token = max(0.0, (many - few) / (MEASURED[1] - MEASURED[0]))
        return CacheSize(token, max(0.0, many - token * MEASURED[1]))
    embedding = model.get_input_embeddings().weight
    return CacheSize(2 * num_layers(model) * embedding.shape[1] * embedding.element_size(), 0)


MEASURED = (8, 16)
"""Tokens of the two rows that tell a cache's bytes per token from those per row."""


def held_bytes(thing: Any) -> int:
    """Bytes of all tensors within an object, each storage once."""
    storages: dict[int, int] = {}
    seen: set[int] = set()
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Tensor):
            storages[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
        elif id(one) not in seen:
            seen.add(id(one))
            inner = one if isinstance(one, list | tuple | set) else one.values() if isinstance(one, dict) else ()
            waiting += [*inner, *getattr(one, "__dict__", {}).values()]
    return sum(storages.values())


def num_layers(model: PreTrainedModel) -> int:
    """The layers that write to a cache."""
    return int(model.config.get_text_config().num_hidden_layers)
