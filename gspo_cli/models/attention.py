"""One attention for all passes: padded rows, packed rows, and rows that are decoded token by token.

transformers' own sdpa attention repeats keys and values for each query head as soon as there is a mask, and drops soft
caps. This one does neither, knows sliding windows without a mask, and refuses what it does not know.

B = rows, H = query heads, K = key-value heads, G = H / K, Q = queries, T = keys, D = head dimension, N = tokens fed
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import masking_utils
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from gspo_cli.models.device import deterministic_kernels
from gspo_cli.models.packing import Packing, take_rows

ATTENTION = "gspo"
"""Its name among transformers' attention implementations."""
_PACKED: ContextVar[bool | None] = ContextVar("packed", default=None)

HARMLESS = {
    "position_ids", "cache_position", "cache_params", "output_attentions", "output_hidden_states", "use_cache",
    "output_router_logits", "return_dict", "position_embeddings", "logits_to_keep", "labels", "past_key_values",
    "num_items_in_batch", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx",
}  # fmt: skip
"""Keyword arguments that models hand to their attention and that do not change what it computes."""


class UnknownAttention(ValueError):
    """The model's attention needs something that this one does not have."""


@contextmanager
def packed_rows(packed: bool) -> Iterator[None]:
    """Within the context, a model whose rows are packed builds no masks, and none looks for packed rows in positions:
    a GPU would have to be waited for."""
    token = _PACKED.set(packed)
    try:
        yield
    finally:
        _PACKED.reset(token)


def attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
    *, scaling: float | None = None, sliding_window: int | None = None, softcap: float | None = None,
    s_aux: Tensor | None = None, is_causal: bool | None = None, packing: Packing | None = None,
    slot: Tensor | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """transformers' attention interface: [B, H, Q, D] to [B, Q, H, D].

    `slot`: of one query a row, its place in a cache of fixed length, which holds nothing behind it.
    Errors: UnknownAttention.
    """
    others = kwargs | {"dropout": kwargs.get("dropout") or None}
    if unknown := [name for name, x in others.items() if x is not None and name not in HARMLESS]:
        raise UnknownAttention(", ".join(unknown))
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if packing is None:
        if not torch.compiler.is_compiling() and _PACKED.get():  # a context variable cannot be compiled
            raise UnknownAttention("the model does not hand on how its rows are packed")
        if mask is not None and mask.dtype != torch.bool:
            raise UnknownAttention("a mask of numbers")
        mask = None if mask is None else mask[..., : key.shape[2]]
        if slot is not None and sliding_window is not None and mask is not None:
            mask = mask & (slot - torch.arange(key.shape[2], device=key.device) < sliding_window)
            sliding_window = None
        out = attend(query, key, value, mask, scaling, causal, sliding_window, softcap, s_aux)
        return out.transpose(1, 2), None
    if mask is not None or not causal:
        raise UnknownAttention("a mask of packed rows")
    flat = [x[0].transpose(0, 1).flatten(1) for x in (query, key, value)]
    outputs = []
    for block_BT in packing.blocks:
        q, k, v = (
            take_rows(x, block_BT).unflatten(-1, (heads.shape[1], -1)).transpose(1, 2)
            for x, heads in zip(flat, (query, key, value), strict=True)
        )
        out = attend(q, k, v, None, scaling, True, sliding_window, softcap, s_aux)
        outputs.append(out.transpose(1, 2).flatten(2).flatten(0, 1))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return take_rows(joined, packing.unpack_N).view(1, query.shape[2], query.shape[1], -1), None


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None, causal: bool,
    window: int | None, softcap: float | None, sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """Attention of [B, H, Q, D] over [B, K, T, D], whose last Q positions are the queries': [B, H, Q, D].

    `mask`: bool, [B or 1, 1, Q, T], True = may be seen; without one, all earlier positions if `causal`. `window`: how
    many positions up to its own a query sees. `softcap`: scores become c tanh(score / c). `sinks`: [H], a score beside
    those of the keys, without a value (gpt-oss).
    """
    (batch, heads, queries, _), (groups, keys) = query.shape, key.shape[1:3]
    if window is not None and keys > window:
        if queries == 1:
            key, value, mask = key[:, :, -window:], value[:, :, -window:], None if mask is None else mask[..., -window:]
        else:
            last_Q1 = torch.arange(keys - queries, keys, device=query.device)[:, None]
            distance_QT = last_Q1 - torch.arange(keys, device=query.device)
            band_QT = (distance_QT >= 0) & (distance_QT < window) if causal else distance_QT.abs() < window
            mask = band_QT[None, None] if mask is None else _nonempty(mask & band_QT)
    if softcap is not None or sinks is not None:
        return _explicit(query, key, value, mask, scale, causal, softcap, sinks)
    if queries == 1 and heads != groups:  # the heads of a group as queries: nothing is repeated
        grouped = query.view(batch, groups, heads // groups, -1)
        return F.scaled_dot_product_attention(grouped, key, value, mask, scale=scale).reshape(batch, heads, 1, -1)
    if heads != groups and query.is_cuda and (query.dtype == torch.float32 or mask is not None):
        # no kernel of linear memory takes grouped heads there in float32, nor with a mask before torch 2.14
        key, value = (x.repeat_interleave(heads // groups, dim=1) for x in (key, value))
    alone = causal and mask is None and queries > 1
    differentiated = query.is_cuda and any(x.requires_grad for x in (query, key, value))
    with deterministic_kernels() if differentiated else nullcontext():
        out = F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=alone, scale=scale, enable_gqa=heads != key.shape[1]
        )
    return _deterministic_backward(out) if differentiated else out


def _deterministic_backward(out: Tensor) -> Tensor:
    """A result of torch's attention whose backward pass runs within `deterministic_kernels`."""
    node = out.grad_fn
    if node is not None and not node.name().startswith("ScaledDotProduct") and node.next_functions:
        node = node.next_functions[0][0]  # heads of odd width are padded, and the padding is cut off
    if node is not None and node.name().startswith("ScaledDotProduct"):
        contexts = ExitStack()
        node.register_prehook(lambda _: contexts.enter_context(deterministic_kernels()) and None)
        node.register_hook(lambda *_: contexts.close())
    return out


def _nonempty(mask: Tensor) -> Tensor:
    """The mask with a first key for queries that may see none, which are padding: their softmax would be empty."""
    empty = ~mask.any(-1)
    return torch.cat([mask[..., :1] | empty[..., None], mask[..., 1:]], -1)


def _explicit(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None, causal: bool,
    softcap: float | None, sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    (batch, heads, queries, dim), (groups, keys) = query.shape, key.shape[1:3]
    grouped = query.reshape(batch, groups, heads // groups * queries, dim)
    scores = (grouped @ key.transpose(2, 3)).view(batch, groups, heads // groups, queries, keys)
    scores = scores * (dim**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is None and causal and queries > 1:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)[None, None]
    if mask is not None:
        scores = scores.masked_fill(~mask[:, :, None], torch.finfo(scores.dtype).min)
    if sinks is not None:
        sink = sinks.to(scores.dtype).view(1, groups, -1, 1, 1).expand(batch, -1, -1, queries, 1)
        scores = torch.cat([scores, sink], -1)
    share = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))[..., :keys].to(value.dtype)
    return (share.flatten(2, 3) @ value).view(batch, heads, queries, -1)


def attention_mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
    """transformers' mask interface: none for packed rows, else the library's own for each kind of layer."""
    if _PACKED.get() and attention_mask is None:
        return None
    kwargs["allow_is_causal_skip"] = attention_mask is None
    mask: Tensor | None = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"](*args, attention_mask=attention_mask, **kwargs)
    return mask


@cache
def install_attention() -> None:
    """Registers this attention with transformers, and has `packed_rows` heeded where the library looks for packed rows.

    Done where a model is given its paths (`admission`): importing changes nothing.
    """
    find_packed = masking_utils.find_packed_sequence_indices

    def find_unless_known(position_ids: Tensor) -> Tensor | None:
        found: Tensor | None = None if _PACKED.get() is not None else find_packed(position_ids)
        return found

    masking_utils.find_packed_sequence_indices = find_unless_known
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, attention_mask)
