"""The policies that a stored batch is measured with: loaded, identified, and their log-probabilities.

B = responses, T = token positions (of prompt and response where ids are meant, else of the response alone)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gspo_cli.config import ModelConfig
from gspo_cli.errors import GspoError
from gspo_cli.instruments.batch.data import StoredBatch, check_vocabulary
from gspo_cli.models.load import load_policy, tokenizer_hash, weights_hash
from gspo_cli.models.log_probs import token_scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MICRO_BATCH_TOKENS = 8192  # padded tokens of one forward pass, as in training


@dataclass(frozen=True, slots=True)
class Policy:
    """A model and what identifies it."""

    name: str
    model: PreTrainedModel
    sha256: str


def load_sampling_policy(name: str, batch: StoredBatch) -> Policy:
    """The policy that sampled the batch; in bfloat16 if it was that when it sampled.

    Errors: GspoError when the batch is another model's or another tokenizer's.
    """
    found = []
    for dtype in ("float32", "bfloat16"):
        model, tokenizer = load_policy(ModelConfig(path=name, dtype=dtype), name)
        _check_tokenizer(name, tokenizer, batch)
        found.append(weights_hash(model))
        if found[-1] == batch.model_sha256:
            return _checked(Policy(name, model, found[-1]), batch)
    raise GspoError(
        f"{batch.path} was sampled by model {batch.model_sha256[:12]}, {name} is {found[0][:12]}",
        "old log-probabilities must be those of the policy that sampled",
        "give that policy with --model; a later one goes into --against",
    )


def load_later_policy(name: str, batch: StoredBatch, sampling: Policy) -> Policy:
    """A policy some updates later, in the sampler's precision. Errors: GspoError when its tokenizer is another one."""
    dtype = "bfloat16" if sampling.model.dtype == torch.bfloat16 else "float32"
    model, tokenizer = load_policy(ModelConfig(path=name, dtype=dtype), name)
    _check_tokenizer(name, tokenizer, batch)
    return _checked(Policy(name, model, weights_hash(model)), batch)


def _check_tokenizer(name: str, tokenizer: PreTrainedTokenizerBase, batch: StoredBatch) -> None:
    found = tokenizer_hash(tokenizer)
    if found != batch.tokenizer_sha256:
        raise GspoError(
            f"{batch.path} has the tokens of tokenizer {batch.tokenizer_sha256[:12]}, that of {name} is {found[:12]}",
            "the same token ids would mean other texts",
            "give a model with the batch's tokenizer",
        )


def _checked(policy: Policy, batch: StoredBatch) -> Policy:
    ids = [r.prompt_ids + r.token_ids for r in batch.responses]
    check_vocabulary(batch.path, ids, policy.model.get_input_embeddings().num_embeddings, policy.name)
    return policy


def chunks(batch: StoredBatch, rows: list[int]) -> Iterator[list[int]]:
    """Rows in passes of at most `MICRO_BATCH_TOKENS` padded tokens (at least one row each), in their order."""
    part: list[int] = []
    width = 0
    for i in rows:
        length = len(batch.responses[i].prompt_ids) + len(batch.responses[i].token_ids)
        if part and (len(part) + 1) * max(width, length) > MICRO_BATCH_TOKENS:
            yield part
            part, width = [], 0
        part.append(i)
        width = max(width, length)
    yield part


def forward(model: PreTrainedModel, batch: StoredBatch, rows: list[int]) -> Tensor:
    """Log-probabilities of all response tokens of these rows, one after the other: [loss tokens], with gradient."""
    responses = [batch.responses[i] for i in rows]
    width = max(len(r.prompt_ids) + len(r.token_ids) for r in responses)
    ids_BT = torch.zeros(len(rows), width, dtype=torch.long)
    mask_BT = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, r in enumerate(responses):
        end = len(r.prompt_ids) + len(r.token_ids)
        ids_BT[row, :end] = torch.tensor(r.prompt_ids + r.token_ids)
        mask_BT[row, len(r.prompt_ids) : end] = True
    ids_BT, mask_BT = ids_BT.to(model.device), mask_BT.to(model.device)
    return token_scores(model, ids_BT, mask_BT, batch.temperature).log_probs_BT[mask_BT]


@torch.no_grad()
def log_probs(policy: Policy, batch: StoredBatch) -> Tensor:
    """log pi(y_t) at the stored temperature of every response token, float64 on the CPU: [B, T], 0 after the end."""
    parts = [
        forward(policy.model, batch, rows).cpu().double()
        for group in range(batch.num_groups)
        for rows in chunks(batch, batch.of_group(group))
    ]
    mask_BT = response_mask(batch)
    return torch.zeros(mask_BT.shape, dtype=torch.float64).masked_scatter(mask_BT, torch.cat(parts))


def sampler_log_probs(batch: StoredBatch) -> Tensor:
    """The stored ones, likewise: [B, T]."""
    mask_BT = response_mask(batch)
    flat = torch.tensor([p for r in batch.responses for p in r.log_probs], dtype=torch.float64)
    return torch.zeros(mask_BT.shape, dtype=torch.float64).masked_scatter(mask_BT, flat)


def response_mask(batch: StoredBatch) -> Tensor:
    """True at the tokens of each response, which starts at position 0: [B, T]."""
    lengths_B = torch.tensor([len(r.token_ids) for r in batch.responses])
    return torch.arange(int(lengths_B.max()))[None, :] < lengths_B[:, None]
