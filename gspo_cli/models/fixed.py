"""Rows that are continued in steps of few fixed shapes, so that a step can be compiled: on a GPU, it is then one CUDA
graph instead of some operations for every layer.

Rows and cache are padded to a few sizes, the place that is written is held in a tensor, and a mask over the whole
length hides what is not filled. Memory is taken once, since a CUDA graph is bound to its addresses.

R = rows, padded; T = cache positions, padded; P = prompts; H = key-value heads or hidden width; D = head dimension
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gspo_cli.models.decoding import CachedRows, Indices, num_layers
from gspo_cli.models.device import upload_together
from gspo_cli.models.trunk import trunk_of

FEWEST_ROWS, SHORTEST = 8, 64
DOUBLED_UP_TO = 1024
"""Cache positions are a power of two up to this, and a multiple of it beyond."""


def padded_rows(rows: int) -> int:
    """The next power of two."""
    return max(FEWEST_ROWS, 1 << (rows - 1).bit_length())


def padded_length(length: int) -> int:
    """The size of a cache that holds so many positions; see `DOUBLED_UP_TO`."""
    if length > DOUBLED_UP_TO:
        return -(-length // DOUBLED_UP_TO) * DOUBLED_UP_TO
    return max(SHORTEST, 1 << (length - 1).bit_length())


class FixedCache:
    """What an attention layer needs of a cache, of fixed size: `update` writes one position and returns all."""

    def __init__(self, keys_RHTD: list[Tensor], values_RHTD: list[Tensor]) -> None:
        self.keys_RHTD, self.values_RHTD = keys_RHTD, values_RHTD
        self.slot_1: Tensor | None = None

    def update(
        self, keys_RHTD: Tensor, values_RHTD: Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Writes the new position of one layer."""
        assert self.slot_1 is not None
        self.keys_RHTD[layer].index_copy_(2, self.slot_1, keys_RHTD)
        self.values_RHTD[layer].index_copy_(2, self.slot_1, values_RHTD)
        return self.keys_RHTD[layer], self.values_RHTD[layer]

    def get_seq_length(self, _layer: int = 0) -> int:
        """A constant: positions and mask are given, and a number that changes would be compiled again and again."""
        return 1


def decode(trunk: nn.Module, cache: FixedCache, inputs_3R: Tensor) -> Tensor:
    """One step of all rows: hidden states [R, H]. `inputs_3R`: each row's token, its first position in the cache that
    is no padding, and the position to write, the same for all."""
    ids_R, start_R, slot_1 = inputs_3R[0], inputs_3R[1], inputs_3R[2, :1]
    at_T = torch.arange(cache.keys_RHTD[0].shape[2], device=inputs_3R.device)
    mask_RT = (at_T >= start_R[:, None]) & (at_T <= slot_1)
    cache.slot_1 = slot_1
    out = trunk(
        input_ids=ids_R[:, None], attention_mask=mask_RT[:, None, None], position_ids=(slot_1 - start_R)[:, None],
        past_key_values=cache, use_cache=True, slot=slot_1,
    )  # fmt: skip
    cache.slot_1 = None
    hidden_RH: Tensor = out[0][:, -1]
    return hidden_RH


Decode = Callable[[nn.Module, FixedCache, Tensor], Tensor]


class FixedStep:
    """`decode` for one model, as it is or compiled, with the caches' memory, which it keeps from batch to batch."""

    def __init__(self, model: PreTrainedModel, function: Decode = decode, experts: str = "batched_mm") -> None:
        self.model, self.function, self.experts = model, function, experts
        self.seconds = 0.0  # that compiling took
        self.stored: list[Tensor] = []
        self.caches: dict[tuple[int, int], FixedCache] = {}

    def reserve(self, like_RHTD: list[Tensor], rows: int, length: int) -> None:
        """Memory for caches of up to so many rows and positions; `like_RHTD`: all keys, then all values."""
        wanted = [padded_rows(rows) * x.shape[1] * padded_length(length) * x.shape[3] for x in like_RHTD]
        fits = len(self.stored) == len(wanted) and all(
            x.numel() >= n and x.dtype == like.dtype for x, n, like in zip(self.stored, wanted, like_RHTD, strict=True)
        )
        if not fits:
            self.caches, self.stored = {}, []
            # zeros: what is masked is multiplied by 0, and must be finite
            self.stored = [like.new_zeros(n) for n, like in zip(wanted, like_RHTD, strict=True)]

    def cache(self, like_RHTD: list[Tensor], rows: int, length: int) -> FixedCache:
        """The cache of this (padded) size. All caches are views of the same memory, each from its beginning."""
        if (rows, length) not in self.caches:
            views = []
            for stored, like in zip(self.stored, like_RHTD, strict=True):
                shape = (rows, like.shape[1], length, like.shape[3])
                views.append(stored[: rows * like.shape[1] * length * like.shape[3]].view(shape))
            layers = len(views) // 2
            self.caches[rows, length] = FixedCache(views[:layers], views[layers:])
        return self.caches[rows, length]

    def __call__(self, cache: FixedCache, inputs_3R: Tensor) -> Tensor:
        """See `decode`. transformers' usual kernels for experts need the host, or shapes that depend on the choices."""
        config = self.model.config.get_text_config()
        usual, config._experts_implementation = config._experts_implementation, self.experts
        try:
            return self.function(trunk_of(self.model), cache, inputs_3R)
        finally:
            config._experts_implementation = usual


class FixedRows:
    """`Rows` on a `FixedStep`; prompts of any length, padded on the left, in one plain pass."""

    def __init__(
        self, model: PreTrainedModel, prompts: list[tuple[int, ...]], max_new_tokens: int, max_rows: int,
        step: FixedStep,
    ) -> None:  # fmt: skip
        first = CachedRows(model, prompts, 0, len(prompts))
        self.model, self.fixed, self.length = model, step, first.width
        self.hidden_RH = first.hidden_RH
        self.start_R = np.array([first.width - len(prompt) for prompt in prompts])
        self.filled = [x for x in (*first.cache.keys_RHTD, *first.cache.values_RHTD) if x is not None]
        assert len(self.filled) == 2 * num_layers(model)
        step.reserve(self.filled, max(max_rows, len(prompts)), first.width + max_new_tokens)
        self.size = (0, 0)

    def step(self, sources: Indices, tokens: Indices) -> None:
        """See `Rows.step`. A row must not be written to and be a source at once."""
        rows, size = len(sources), (padded_rows(len(sources)), padded_length(self.length + 1))
        inputs_3R = np.zeros((3, size[0]), dtype=np.int64)
        inputs_3R[0, :rows] = tokens
        inputs_3R[1] = inputs_3R[2] = self.length  # a row of padding sees itself
        inputs_3R[1, :rows] = self.start_R = self.start_R[sources]
        stays = size == self.size
        moved = np.flatnonzero(sources != np.arange(rows)) if stays else np.arange(rows)
        packed, to, source = upload_together([inputs_3R.reshape(-1), moved, sources[moved]], self.model.device)
        if stays and len(moved):
            for x in self.filled:
                x[:, :, : self.length].index_copy_(0, to, x[:, :, : self.length].index_select(0, source))
        elif not stays:
            self._resize(size, source)
        cache = self.fixed.cache(self.filled, *size)
        self.hidden_RH = self.fixed(cache, packed.view(3, -1))[:rows]
        self.length += 1

    def _resize(self, size: tuple[int, int], source: Tensor) -> None:
        """Moves rows to the cache of another size. It may be in the same memory, so each layer is copied twice."""
        cache = self.fixed.cache(self.filled, *size)
        views = [*cache.keys_RHTD, *cache.values_RHTD]
        for old, new in zip(self.filled, views, strict=True):
            new[: len(source), :, : self.length] = old[:, :, : self.length].index_select(0, source)
        self.filled, self.size = views, size
