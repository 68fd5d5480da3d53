"""The policy's log-probabilities of given tokens.

B = responses, T = token positions, N = loss tokens, R = tokens fed, H = hidden width, V = vocabulary
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from gspo_cli.models.packing import Packing, last_hidden, take_rows
from gspo_cli.models.sharding import inside

CHUNK_LOGITS = 1 << 24  # logits held at a time; more tokens than that are done in chunks and recomputed in backward


class TokenScores(NamedTuple):
    """Of each loss token, 0 elsewhere; float32, or the model's precision where that is higher."""

    log_probs_BT: Tensor
    entropy_BT: Tensor
    """Of the whole distribution the token was drawn from, in nats; no gradient."""


def token_scores(
    model: PreTrainedModel, input_ids_BT: Tensor, mask_BT: Tensor, temperature: float, packing: Packing | None = None
) -> TokenScores:
    """log pi(y_t | y_<t) at temperature T, and the entropy there, for the tokens that `mask_BT` marks.

    The token at t is predicted by the hidden state at t - 1; the language-model head runs on those positions alone,
    never on prompt or padding. With `packing` (of the same rows) the model is fed packed rows instead of padded ones:
    the same values to rounding.
    """
    return inside(model, _token_scores, input_ids_BT, mask_BT, temperature, packing)


def _token_scores(
    model: PreTrainedModel, input_ids_BT: Tensor, mask_BT: Tensor, temperature: float, packing: Packing | None
) -> TokenScores:
    hidden_RH = last_hidden(model.base_model, input_ids_BT, packing)
    index_BT = torch.arange(mask_BT.numel(), device=mask_BT.device).view(mask_BT.shape)
    index_BT = index_BT if packing is None else packing.index_BT
    hidden_NH, target_N = take_rows(hidden_RH, index_BT[:, :-1][mask_BT[:, 1:]]), input_ids_BT[mask_BT]
    weight_VH = model.get_output_embeddings().weight
    size = max(1, CHUNK_LOGITS // len(weight_VH))
    if len(target_N) <= size:
        scores = [_chunk(hidden_NH, target_N, weight_VH, temperature)]
    else:
        scores = [
            checkpoint(_chunk, hidden, target, weight_VH, temperature, use_reentrant=False)
            for hidden, target in zip(hidden_NH.split(size), target_N.split(size), strict=True)
        ]
    log_probs_BT, entropy_BT = (_place(torch.cat(parts), mask_BT) for parts in zip(*scores, strict=True))
    return TokenScores(log_probs_BT, entropy_BT)


def _chunk(hidden_NH: Tensor, target_N: Tensor, weight_VH: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logits_NV = F.linear(hidden_NH, weight_VH)
    logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    log_probs_NV = torch.log_softmax(logits_NV / temperature, dim=-1)
    with torch.no_grad():
        entropy_N = -(log_probs_NV.exp() * log_probs_NV).sum(-1)
    return log_probs_NV.gather(-1, target_N[:, None])[:, 0], entropy_N


def _place(values_N: Tensor, mask_BT: Tensor) -> Tensor:
    """The values at the marked positions, in order, 0 elsewhere: [B, T]."""
    return torch.zeros(mask_BT.shape, dtype=values_N.dtype, device=values_N.device).masked_scatter(mask_BT, values_N)
