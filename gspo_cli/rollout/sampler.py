"""The built-in sampler: every distinct beginning of a response computed once, a preallocated cache, finished rows
dropped, stateless random numbers.

B = live responses, R = rows being decoded, P = prompts, T = positions, V = vocabulary
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.moe.routers import Routing
from gspo_cli.moe.tap import RouterTap, tapped
from gspo_cli.rollout.kv_cache import KVCache
from gspo_cli.rollout.route_recorder import RouteRecorder, Routes
from gspo_cli.rollout.truncate import truncate
from gspo_cli.rollout.uniforms import uniforms
from gspo_cli.types import Sampling

Indices = NDArray[np.int64]

DROP_SHARE = 0.25  # of the rows must have lost all responses before the rest is copied together
BLOCK = 64  # tokens for which random numbers are made at a time


@dataclass(slots=True)
class Drawn:
    """One response: its tokens and their log-probabilities."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    stopped: bool = False
    """True if a stop token ended it, False if the length limit did."""
    routes_TLK: Routes | None = None
    """The experts of every token of prompt and response but the last, if they were wanted."""


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    prompts: list[tuple[int, ...]],
    seeds: list[list[int]],
    sampling: Sampling,
    stop_ids: frozenset[int],
    deadline: float,
    routing: Routing | None = None,
) -> list[list[Drawn]]:
    """Draws len(seeds[p]) responses to each prompt, one for each seed.

    A response's tokens depend on the weights, its prompt and its seed alone, not on what else is in the batch (its
    log-probabilities move in the sixth digit with the batch's composition). Temperature 0 takes the likeliest token
    and gives its log-probability at temperature 1. The model must be in `eval` mode.
    Errors: GspoError (exit code 5) when `time.monotonic()` passes the deadline.
    """
    assert not model.training
    with tapped(routing) as tap:
        return _sample(model, prompts, seeds, sampling, stop_ids, deadline, tap)


def _sample(
    model: PreTrainedModel,
    prompts: list[tuple[int, ...]],
    seeds: list[list[int]],
    sampling: Sampling,
    stop_ids: frozenset[int],
    deadline: float,
    tap: RouterTap | None,
) -> list[list[Drawn]]:
    device, max_new_tokens = model.device, sampling.max_new_tokens
    cache, visible_RT, logits_RV = prefill(model, prompts, max_new_tokens)
    width, vocabulary = max(map(len, prompts)), logits_RV.shape[-1]
    length_R = torch.tensor([len(p) for p in prompts], device=device)

    owner = [p for p, group in enumerate(seeds) for _ in group]
    drawn = [Drawn() for _ in owner]
    recorder = RouteRecorder(tap, prompts, owner, max_new_tokens) if tap else None
    flat_seeds = np.array([s for group in seeds for s in group], dtype=np.uint64)
    is_stop_V = np.isin(np.arange(vocabulary), list(stop_ids))
    live = np.arange(len(owner))  # the responses that go on ...
    row_of = np.array(owner)  # ... and the row that each is decoded in: responses that are equal so far share one

    pending: list[tuple[Indices, Indices, Tensor]] = []
    for t in range(max_new_tokens):
        if time.monotonic() > deadline:
            raise GspoError(
                f"sampling took too long: {t} of {max_new_tokens} tokens at the deadline",
                "rollout.deadline_s bounds the time of one rollout batch",
                "raise rollout.deadline_s, or lower rollout.max_new_tokens, prompts or samples",
                ExitCode.ENGINE,
            )
        if t % BLOCK == 0:
            block_BT = uniforms(flat_seeds[live], t, BLOCK)
        rows_B, uniform_B = torch.from_numpy(row_of).to(device), torch.from_numpy(block_BT[:, t % BLOCK]).to(device)
        token_B, log_prob_B = draw(logits_RV, rows_B, uniform_B, sampling)
        tokens = token_B.cpu().numpy()
        pending.append((live, tokens, log_prob_B))
        goes_on = ~is_stop_V[tokens]
        live, row_of, tokens, block_BT = live[goes_on], row_of[goes_on], tokens[goes_on], block_BT[goes_on]
        if not len(live) or t + 1 == max_new_tokens:
            break
        parents, next_tokens, row_of = branch(row_of, tokens, len(logits_RV))
        if not np.array_equal(parents, np.arange(len(logits_RV))):
            kept_R = torch.from_numpy(parents).to(device)
            cache.select(kept_R)
            visible_RT, length_R = visible_RT[kept_R], length_R[kept_R]
        logits_RV = model(
            input_ids=torch.from_numpy(next_tokens).to(device)[:, None],
            attention_mask=visible_RT[:, None, None, : width + t + 1],
            position_ids=(length_R + t)[:, None], past_key_values=cache, use_cache=True,
        ).logits[:, -1]  # fmt: skip
        if recorder:
            recorder.note(live, row_of, t)

    for responses, tokens, log_prob_B in pending:
        for response, token, log_prob in zip(responses.tolist(), tokens.tolist(), log_prob_B.tolist(), strict=True):
            drawn[response].token_ids.append(token)
            drawn[response].log_probs.append(log_prob)
    for i, response in enumerate(drawn):
        response.stopped = response.token_ids[-1] in stop_ids
        if recorder:
            response.routes_TLK = recorder.of(i, len(response.token_ids))
    answers = iter(drawn)
    return [[next(answers) for _ in group] for group in seeds]


def branch(row_of: Indices, tokens: Indices, num_rows: int) -> tuple[Indices, Indices, Indices]:
    """The rows of the next pass: one for each different (row, next token) among the live responses.

    Returns the row that each continues, its token, and which of them each response is decoded in. Rows that only
    lost responses stay where they are until `DROP_SHARE` of all can be dropped at once: dropping copies the cache.
    """
    pairs, position = np.unique(np.stack([row_of, tokens]), axis=1, return_inverse=True)
    parents, next_tokens = pairs
    position = position.reshape(-1)  # numpy 2.0 gave it two axes
    splits = len(np.unique(parents)) < len(parents)
    if splits or len(parents) <= (1 - DROP_SHARE) * num_rows:
        return parents, next_tokens, position
    held = np.zeros(num_rows, dtype=np.int64)
    held[parents] = next_tokens
    return np.arange(num_rows), held, parents[position]


def prefill(
    model: PreTrainedModel, prompts: list[tuple[int, ...]], max_new_tokens: int
) -> tuple[KVCache, Tensor, Tensor]:
    """One forward pass a prompt: the filled cache, which positions each row may see [P, T], and its next-token logits
    [P, V]. T has room for the responses."""
    width = max(map(len, prompts))
    ids_PT = torch.zeros(len(prompts), width, dtype=torch.long)
    visible_PT = torch.zeros(len(prompts), width + max_new_tokens, dtype=torch.bool)
    for row, prompt in enumerate(prompts):  # on the left, so that all rows write the same cache position
        ids_PT[row, width - len(prompt) :] = torch.tensor(prompt)
        visible_PT[row, width - len(prompt) :] = True
    visible_PT = visible_PT.to(model.device)

    cache = KVCache(model.config.num_hidden_layers, width + max_new_tokens)
    causal_TT = torch.ones(width, width, dtype=torch.bool, device=model.device).tril()
    # a padding row sees itself, or its softmax would be empty
    itself_TT = torch.eye(width, dtype=torch.bool, device=model.device)
    mask_PTT = (causal_TT & visible_PT[:, None, :width]) | itself_TT
    out = model(
        input_ids=ids_PT.to(model.device),
        attention_mask=mask_PTT[:, None],
        position_ids=(visible_PT[:, :width].cumsum(1) - 1).clamp(min=0),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return cache, visible_PT, out.logits[:, -1]


def draw(logits_RV: Tensor, rows_B: Tensor, uniform_B: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """One token for each response by inverting its row's cumulative distribution in float64, with its float32
    log-probability under the distribution it was drawn from.

    The uniform number is scaled by the distribution's own sum and kept below it, so that rounding can never point
    past the last token that has a probability.
    """
    log_probs_RV = torch.log_softmax(logits_RV.float() / (sampling.temperature or 1.0), dim=-1)
    if sampling.temperature == 0:
        token_B = log_probs_RV.argmax(-1)[rows_B]
    else:
        log_probs_RV = truncate(log_probs_RV, sampling)
        cumulative_BV = log_probs_RV.double().exp().cumsum(-1)[rows_B]
        total_B1 = cumulative_BV[:, -1:]
        below_B1 = torch.nextafter(total_B1, torch.zeros_like(total_B1))
        target_B1 = torch.minimum(uniform_B[:, None] * total_B1, below_B1)
        token_B = torch.searchsorted(cumulative_BV, target_B1, right=True)[:, 0]
    return token_B, log_probs_RV[rows_B, token_B]
