"""Rows of tokens without padding, equal beginnings once: how a training pass is fed.

Everything but attention works on single tokens, so rows are laid one after the other, and those that begin alike (all
responses to one prompt do) share these tokens: under causal attention they compute the same in each of them.
Attention alone sees rows again, in blocks of similar length; there is no attention mask anywhere.

B = responses, T = token positions of a row, N = tokens fed, H = heads, D = head dimension
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ATTENTION = "packed_sdpa"
SHORTEST = 0.7  # of a block's longest row: shorter ones start a block of their own


@dataclass(frozen=True, slots=True)
class Packing:
    """Token rows laid one after the other."""

    input_ids: Tensor
    """[1, N]."""
    position_ids: Tensor
    """[1, N]; each row's own, from 0."""
    index_BT: Tensor
    """Which of the N each row's token is; 0 at padding."""
    blocks: tuple[Tensor, ...]
    """The rows for attention, the longest first, each block only as wide as its longest row."""
    back_N: Tensor
    """Where in the blocks' flattened positions each of the N stands (in one of its rows, if it is shared)."""

    def to(self, device: torch.device) -> Packing:
        """The same on a device."""
        ids, positions, index_BT, back_N = (
            t.to(device) for t in (self.input_ids, self.position_ids, self.index_BT, self.back_N)
        )
        return Packing(ids, positions, index_BT, tuple(block.to(device) for block in self.blocks), back_N)


class NotPackable(Exception):
    """An attention that needs more than causal rows: a window, sinks, a soft cap."""


def pack(rows: list[tuple[int, ...]]) -> Packing:
    """Rows of prompt and response; what several begin with is fed once."""
    ids: list[int] = []
    positions: list[int] = []
    index: list[list[int]] = [[] for _ in rows]
    order = sorted(range(len(rows)), key=rows.__getitem__)  # in which the row before shares the most
    for before, b in zip([order[0], *order], order, strict=False):
        row, shared = rows[b], common(rows[before], rows[b]) if ids else 0
        index[b] = [*index[before][:shared], *range(len(ids), len(ids) + len(row) - shared)]
        ids += row[shared:]
        positions += range(shared, len(row))
    width = max(map(len, rows))
    index_BT = torch.tensor([where + [0] * (width - len(where)) for where in index])
    # a row that another one begins with has all its tokens there
    whole = [b for b, after in pairwise(order) if rows[after][: len(rows[b])] != rows[b]] + order[-1:]
    blocks, back_N = make_blocks(index_BT, sorted((len(rows[b]), b) for b in whole)[::-1], len(ids))
    return Packing(torch.tensor([ids]), torch.tensor([positions]), index_BT, blocks, back_N)


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """With how many equal tokens both rows begin."""
    pairs = zip(one, other, strict=False)
    return next((t for t, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def make_blocks(index_BT: Tensor, rows: list[tuple[int, int]], num_tokens: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """`Packing.blocks` and `back_N` for rows given as (length, which), longest first."""
    blocks: list[Tensor] = []
    inside: list[Tensor] = []
    while rows:
        width = rows[0][0]
        block = [row for row in rows if row[0] >= SHORTEST * width]
        rows = rows[len(block) :]
        blocks.append(index_BT[[b for _, b in block], :width])
        inside.append((torch.arange(width) < torch.tensor([length for length, _ in block])[:, None]).flatten())
    filled = torch.cat(inside)
    back_N = torch.empty(num_tokens, dtype=torch.long)
    back_N[torch.cat([block.flatten() for block in blocks])[filled]] = filled.nonzero()[:, 0]
    return tuple(blocks), back_N


def last_hidden(trunk: nn.Module, input_ids_BT: Tensor, packing: Packing | None) -> Tensor:
    """The hidden states of every position fed, one after the other: [N, width], or [B * T, width] without packing.

    Rows are padded on the right, where causal attention cannot look, so there is no attention mask.
    """
    # use_cache must be given: left at the configuration's default, packed rows would attend to each other silently
    given: dict[str, Any] = {"attention_mask": None, "use_cache": False}
    if packing is None:
        given |= {"input_ids": input_ids_BT}
    else:
        given |= {"input_ids": packing.input_ids, "position_ids": packing.position_ids, "packing": packing}
    with recomputing(trunk):
        out = trunk(**given)
    hidden: Tensor = out.last_hidden_state
    return hidden.flatten(0, 1)


@contextmanager
def recomputing(trunk: nn.Module) -> Iterator[None]:
    """Within the context a trunk with gradient checkpointing keeps its layers' inputs alone.

    transformers takes training mode as the sign for it, and in that mode drops the sampler's cache without a word; so
    the mode lasts no longer than a pass that has a backward pass. There is no dropout that it could switch on.
    """
    before = trunk.training
    trunk.train(before or (torch.is_grad_enabled() and bool(getattr(trunk, "is_gradient_checkpointing", False))))
    try:
        yield
    finally:
        trunk.train(before)


def take_rows(values_NX: Tensor, index: Tensor) -> Tensor:
    """`values_NX[index]`; as an embedding, whose backward pass adds up repeated rows many times faster on a CPU."""
    return F.embedding(index, values_NX)


def packed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
    *, packing: Packing | None = None, scaling: float | None = None, dropout: float = 0.0, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """transformers' attention interface: [1, heads, N, D] to [1, N, heads, D]; without `packing` the library's own.

    Errors: NotPackable.
    """
    if packing is None:
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs
        )
    unknown = [name for name in ("sliding_window", "softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]
    if unknown or mask is not None or dropout:
        raise NotPackable(", ".join(unknown) or "a mask or dropout")
    flat = [x[0].transpose(0, 1).flatten(1) for x in (query, key, value)]
    outputs = []
    for block_BT in packing.blocks:
        q_BHTD, k_BHTD, v_BHTD = (
            take_rows(x, block_BT).unflatten(-1, (heads.shape[1], -1)).transpose(1, 2)
            for x, heads in zip(flat, (query, key, value), strict=True)
        )
        grouped = query.shape[1] != key.shape[1]
        out = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True, scale=scaling, enable_gqa=grouped)
        outputs.append(out.transpose(1, 2).flatten(2).flatten(0, 1))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return take_rows(joined, packing.back_N).view(1, query.shape[2], query.shape[1], -1), None


def no_mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
    """transformers' mask interface: without a mask given, attention is causal and needs none."""
    if attention_mask is None:
        return None
    mask: Tensor | None = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"](*args, attention_mask=attention_mask, **kwargs)
    return mask


def packs(model: PreTrainedModel) -> bool:
    """Whether training passes of this model are packed."""
    return bool(model.config._attn_implementation == ATTENTION)


@torch.no_grad()
def enable_packing(model: PreTrainedModel) -> None:
    """Switches a model to packed passes, if a few small rows then give what they give padded; else leaves it as it is.

    Known by trial: architectures differ in what they hand on to attention.
    """
    before = model.config._attn_implementation
    if before != "sdpa":
        return
    ids = [i % model.config.vocab_size for i in range(1, 14)]
    # four rows with one token in common: 9 of their 16 tokens would be wrong if the rows saw each other
    packing = pack([tuple(ids[:1] + ids[i : i + 3]) for i in range(1, 13, 3)]).to(model.device)
    ids_BT = packing.input_ids[0][packing.index_BT]
    padded = last_hidden(model.base_model, ids_BT, None).float()
    model.set_attn_implementation(ATTENTION)
    try:
        packed = take_rows(last_hidden(model.base_model, ids_BT, packing), packing.index_BT).flatten(0, 1).float()
    except (NotPackable, TypeError):
        packed = torch.zeros_like(padded)
    tolerance = 1e-4 if model.dtype.itemsize > 2 else 0.05
    # a median: in half precision a token may get other experts, while a wrong layout changes most tokens
    if float((packed - padded).norm(dim=-1).div(padded.norm(dim=-1)).median()) > tolerance:
        model.set_attn_implementation(before)


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, packed_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, no_mask)
