"""The policy's log-probabilities of given tokens.

B = responses, T = token positions, N = loss tokens, R = tokens fed, H = hidden width, V = vocabulary
"""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from gspo_cli.models.packing import Packing, take_rows
from gspo_cli.models.precision import Weights, in_place, summed, use
from gspo_cli.models.sharding import run_forward
from gspo_cli.models.trunk import head_logits, head_of, last_hidden, trunk_of

CHUNK_LOGITS = 1 << 24
"""The head runs on chunks of tokens: with this many logits,"""
LOGITS_PER_HIDDEN = 4
"""or with this many for each number of the hidden states, if that is more. A chunk then takes about half as much as a
layer in its backward pass, when the logits are gone: memory that a pass needs anyway, whatever its size."""
KEPT_LOGITS = 1 << 27
"""Up to this many log-probabilities (512 MiB) are kept for the backward pass. It recomputes the chunks if there are
more, or if the model's layers are recomputed too."""


class TokenScores(NamedTuple):
    """Scores of each loss token, 0 elsewhere; float32, or the model's precision if that is higher."""

    log_probs_BT: Tensor
    entropy_BT: Tensor
    """Entropy of the full distribution that the token was drawn from, in nats; no gradient."""


def token_scores(
    model: PreTrainedModel, input_ids_BT: Tensor, mask_BT: Tensor, temperature: float, packing: Packing | None = None,
    loss_M: Tensor | None = None,
) -> TokenScores:  # fmt: skip
    """log pi(y_t | y_<t) at `temperature` and the entropy there, for the tokens marked in `mask_BT`.

    The hidden state at t - 1 predicts the token at t; the language-model head runs on those positions only, never on
    prompt or padding. With `packing` of the same rows, the model gets packed instead of padded rows: the same values up
    to rounding. `loss_M`: where the flattened mask is True, if the caller knows (to find out, the host waits).
    """
    loss_M = mask_BT.flatten().nonzero()[:, 0] if loss_M is None else loss_M
    # as rows only here: FSDP's hook would be lost on a view
    flat = run_forward(model, _token_scores, input_ids_BT, loss_M, temperature, packing)
    return TokenScores(*(scores.view(input_ids_BT.shape) for scores in flat))


def _token_scores(
    model: PreTrainedModel, input_ids_BT: Tensor, loss_N: Tensor, temperature: float, packing: Packing | None
) -> tuple[Tensor, Tensor]:
    hidden_RH = last_hidden(trunk_of(model), input_ids_BT, packing)
    predicting_N = loss_N - 1  # within the flattened rows: a row's first position is never a loss token
    fed_N = predicting_N if packing is None else packing.index_BT.flatten()[predicting_N]
    hidden_NH, target_N = take_rows(hidden_RH, fed_N), input_ids_BT.flatten()[loss_N]
    size = max(1, max(CHUNK_LOGITS, LOGITS_PER_HIDDEN * hidden_RH.numel()) // vocabulary(model))
    chunks = list(zip(hidden_NH.split(size), target_N.split(size), strict=True))
    recompute = bool(getattr(trunk_of(model), "is_gradient_checkpointing", False))
    kept = len(chunks) == 1 or (len(target_N) * vocabulary(model) <= KEPT_LOGITS and not recompute)
    score = _score_chunk if kept else partial(checkpoint, _score_chunk, use_reentrant=False)
    head = head_weights(model) if len(chunks) > 1 else []
    scores = [score(model, hidden, target, temperature, head) for hidden, target in chunks]
    log_probs_N, entropy_N = (torch.cat(parts) for parts in zip(*scores, strict=True))
    zeros = log_probs_N.new_zeros(input_ids_BT.numel())
    return zeros.index_copy(0, loss_N, log_probs_N), zeros.index_copy(0, loss_N, entropy_N)


def head_weights(model: PreTrainedModel) -> Weights:
    """What only the head uses, for several chunks, some of which run again when the model has its own weights back."""
    return [
        (module, name, summed(weight))
        for module in (model, *head_of(model))
        for name, weight in module._parameters.items()
        if weight is not None
    ]


def _score_chunk(
    model: PreTrainedModel, hidden_NH: Tensor, target_N: Tensor, temperature: float, head: Weights
) -> tuple[Tensor, Tensor]:
    # one name for what follows from another: 12 bytes a logit, in backward
    with in_place([(module, name, use(weight)) for module, name, weight in head]):
        scores_NV = head_logits(model, hidden_NH)
    scores_NV = scores_NV.to(torch.promote_types(scores_NV.dtype, torch.float32))
    scores_NV = scores_NV if temperature == 1 else scores_NV / temperature
    scores_NV = torch.log_softmax(scores_NV, dim=-1)
    with torch.no_grad():
        entropy_N = -scores_NV.exp().mul_(scores_NV).sum(-1)
    return scores_NV.gather(-1, target_N[:, None])[:, 0], entropy_N


def vocabulary(model: PreTrainedModel) -> int:
    """The number of token ids that a model has, also where its configuration keeps it one level down."""
    return int(model.config.get_text_config().vocab_size)
