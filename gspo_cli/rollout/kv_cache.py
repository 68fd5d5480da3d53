"""A key-value cache allocated once for a whole batch of responses.

R = rows, H = key-value heads, T = positions, D = head dimension
"""

from __future__ import annotations

from torch import Tensor


class KVCache:
    """What a transformers attention layer needs of a cache: `update` and `get_seq_length`, nothing else.

    Keys and values of all layers live in tensors of the final size, so that decoding a token writes a slice and
    concatenates nothing. Rows can be repeated (after one prefill a prompt) and dropped (when responses end).
    """

    def __init__(self, num_layers: int, max_length: int) -> None:
        self.max_length = max_length
        self.length = 0
        self.keys_RHTD: list[Tensor | None] = [None] * num_layers
        self.values_RHTD: list[Tensor | None] = [None] * num_layers
        self.last_layer = num_layers - 1

    def update(
        self, keys_RHTD: Tensor, values_RHTD: Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Appends the new positions of one layer and returns all of its positions (views)."""
        rows, heads, new, dim = keys_RHTD.shape
        end = self.length + new
        if self.keys_RHTD[layer] is None:
            self.keys_RHTD[layer] = keys_RHTD.new_empty(rows, heads, self.max_length, dim)
            self.values_RHTD[layer] = values_RHTD.new_empty(rows, heads, self.max_length, dim)
        all_keys, all_values = self.keys_RHTD[layer], self.values_RHTD[layer]
        assert all_keys is not None and all_values is not None
        all_keys[:, :, self.length : end] = keys_RHTD
        all_values[:, :, self.length : end] = values_RHTD
        if layer == self.last_layer:
            self.length = end
        return all_keys[:, :, :end], all_values[:, :, :end]

    def get_seq_length(self, _layer: int = 0) -> int:
        """Positions filled so far."""
        return self.length

    def select(self, rows_R: Tensor) -> None:
        """Keeps these rows, in this order; a row may be named several times."""
        for store in (self.keys_RHTD, self.values_RHTD):
            for layer, tensor in enumerate(store):
                assert tensor is not None
                kept = tensor.new_empty(len(rows_R), *tensor.shape[1:])
                kept[:, :, : self.length] = tensor[:, :, : self.length].index_select(0, rows_R)
                store[layer] = kept
