"""The policies that a stored batch is measured with: loaded, identified, and their log-probabilities.

B = responses, T = token positions (of prompt and response where ids are meant, else of the response alone)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gspo_cli.config import ModelConfig
from gspo_cli.errors import GspoError
from gspo_cli.instruments.batch.data import StoredBatch
from gspo_cli.models.admission import input_ids_of
from gspo_cli.models.load import load_policy, tokenizer_hash, weights_hash
from gspo_cli.models.log_probs import token_scores

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
        policy = _load(name, dtype, batch)
        found.append(policy.sha256)
        if policy.sha256 == batch.model_sha256:
            return policy
    raise GspoError(
        f"{batch.path} was sampled by model {batch.model_sha256[:12]}, {name} is {found[0][:12]}",
        "old log-probabilities must be those of the policy that sampled",
        "give that policy with --model; a later one goes into --against",
    )


def load_later_policy(name: str, batch: StoredBatch, sampling: Policy) -> Policy:
    """A policy some updates later, in the sampler's precision. Errors: GspoError when its tokenizer is another one."""
    return _load(name, "bfloat16" if sampling.model.dtype == torch.bfloat16 else "float32", batch)


def _load(name: str, dtype: Literal["float32", "bfloat16"], batch: StoredBatch) -> Policy:
    """Errors: GspoError for another tokenizer than the batch's, or token ids that are not the model's."""
    model, tokenizer = load_policy(ModelConfig(path=name, dtype=dtype), name)
    found = tokenizer_hash(tokenizer)
    if found != batch.tokenizer_sha256:
        raise GspoError(
            f"{batch.path} has the tokens of tokenizer {batch.tokenizer_sha256[:12]}, that of {name} is {found[:12]}",
            "the same token ids would mean other texts",
            "give a model with the batch's tokenizer",
        )
    size, ids = input_ids_of(model), [i for r in batch.responses for i in r.prompt_ids + r.token_ids]
    if wrong := [i for i in (min(ids), max(ids)) if not 0 <= i < size]:
        raise GspoError(
            f"{batch.path} holds token id {wrong[0]}",
            f"the vocabulary of {name} has {size} tokens, 0 to {size - 1}",
            "give the model that sampled the batch",
        )
    return Policy(name, model, weights_hash(model))


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
    ids_BT, mask_BT = padded(model, batch, rows)
    return token_scores(model, ids_BT, mask_BT, batch.temperature).log_probs_BT[mask_BT]


def padded(model: PreTrainedModel, batch: StoredBatch, rows: list[int]) -> tuple[Tensor, Tensor]:
    """Token ids of these rows, padded on the right, and where they are response tokens; on the model's device."""
    responses = [batch.responses[i] for i in rows]
    width = max(len(r.prompt_ids) + len(r.token_ids) for r in responses)
    ids_BT = torch.zeros(len(rows), width, dtype=torch.long)
    mask_BT = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, r in enumerate(responses):
        end = len(r.prompt_ids) + len(r.token_ids)
        ids_BT[row, :end] = torch.tensor(r.prompt_ids + r.token_ids)
        mask_BT[row, len(r.prompt_ids) : end] = True
    return ids_BT.to(model.device), mask_BT.to(model.device)


@torch.no_grad()
def log_probs(policy: Policy, batch: StoredBatch) -> Tensor:
    """log pi(y_t) at the stored temperature of every response token, float64 on the CPU: [B, T], 0 after the end."""
    passes = (rows for group in batch.groups for rows in chunks(batch, group))
    return as_rows(batch, torch.cat([forward(policy.model, batch, rows).cpu().double() for rows in passes]))


def sampler_log_probs(batch: StoredBatch) -> Tensor:
    """The stored ones, likewise: [B, T]."""
    return as_rows(batch, torch.tensor([p for r in batch.responses for p in r.log_probs], dtype=torch.float64))


def as_rows(batch: StoredBatch, flat_N: Tensor) -> Tensor:
    """The responses' values as rows: [B, T], 0 after the end."""
    mask_BT = response_mask(batch)
    return torch.zeros(mask_BT.shape, dtype=torch.float64).masked_scatter(mask_BT, flat_N)


def response_mask(batch: StoredBatch) -> Tensor:
    """True at the tokens of each response, which starts at position 0: [B, T]."""
    lengths_B = torch.tensor([len(r.token_ids) for r in batch.responses])
    return torch.arange(int(lengths_B.max()))[None, :] < lengths_B[:, None]
