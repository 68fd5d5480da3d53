"""The built-in sampler: one prefill a prompt, a preallocated cache, finished rows dropped, stateless random numbers.

R = rows being decoded, P = prompts, T = positions, V = vocabulary
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch
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

DROP_SHARE = 0.25  # of the rows must have ended before the rest is copied together
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
    cache, visible_PT, logits_PV = prefill(model, prompts, max_new_tokens)
    width = max(map(len, prompts))
    lengths = torch.tensor([len(p) for p in prompts], device=device)

    owner = [p for p, group in enumerate(seeds) for _ in group]
    drawn = [Drawn() for _ in owner]
    recorder = RouteRecorder(tap, prompts, owner, max_new_tokens) if tap else None
    live = np.arange(len(owner))  # the response that each row is decoding
    rows_R = torch.tensor(owner, device=device)
    cache.select(rows_R)
    visible_RT, length_R, logits_RV = visible_PT[rows_R], lengths[rows_R], logits_PV[rows_R]
    flat_seeds = np.array([s for group in seeds for s in group], dtype=np.uint64)
    stop_V = torch.zeros(logits_RV.shape[-1], dtype=torch.bool, device=device)
    stop_V[list(stop_ids)] = True

    pending: list[tuple[np.ndarray, Tensor, Tensor]] = []
    ended_R = torch.zeros(len(owner), dtype=torch.bool, device=device)
    for t in range(max_new_tokens):
        if time.monotonic() > deadline:
            raise GspoError(
                f"sampling took too long: {t} of {max_new_tokens} tokens at the deadline",
                "rollout.deadline_s bounds the time of one rollout batch",
                "raise rollout.deadline_s, or lower rollout.max_new_tokens, prompts or samples",
                ExitCode.ENGINE,
            )
        if t % BLOCK == 0:
            block_RT = torch.from_numpy(uniforms(flat_seeds[live], t, BLOCK)).to(device)
        token_R, log_prob_R = draw(logits_RV, block_RT[:, t % BLOCK], sampling)
        pending.append((live, token_R.masked_fill(ended_R, -1), log_prob_R))
        ended_R = ended_R | stop_V[token_R]
        num_ended = int(ended_R.sum())
        if num_ended == len(live) or t + 1 == max_new_tokens:
            break
        if num_ended >= DROP_SHARE * len(live):
            keep_R = (~ended_R).nonzero()[:, 0]
            cache.select(keep_R)
            token_R, visible_RT, length_R = token_R[keep_R], visible_RT[keep_R], length_R[keep_R]
            block_RT, ended_R, live = block_RT[keep_R], ended_R[keep_R], live[keep_R.cpu().numpy()]
        logits_RV = model(
            input_ids=token_R[:, None], attention_mask=visible_RT[:, None, None, : width + t + 1],
            position_ids=(length_R + t)[:, None], past_key_values=cache, use_cache=True,
        ).logits[:, -1]  # fmt: skip
        if recorder:
            recorder.note(live, t)

    for rows, token_R, log_prob_R in pending:
        for row, token, log_prob in zip(rows.tolist(), token_R.tolist(), log_prob_R.tolist(), strict=True):
            if token >= 0:
                drawn[row].token_ids.append(token)
                drawn[row].log_probs.append(log_prob)
    for i, response in enumerate(drawn):
        response.stopped = response.token_ids[-1] in stop_ids
        if recorder:
            response.routes_TLK = recorder.of(i, len(response.token_ids))
    answers = iter(drawn)
    return [[next(answers) for _ in group] for group in seeds]


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


def draw(logits_RV: Tensor, uniform_R: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """One token a row by inverting the cumulative distribution in float64, with its float32 log-probability under the
    distribution it was drawn from.

    The uniform number is scaled by the distribution's own sum and kept below it, so that rounding can never point
    past the last token that has a probability.
    """
    log_probs_RV = torch.log_softmax(logits_RV.float() / (sampling.temperature or 1.0), dim=-1)
    if sampling.temperature == 0:
        token_R = log_probs_RV.argmax(-1)
    else:
        log_probs_RV = truncate(log_probs_RV, sampling)
        cumulative_RV = log_probs_RV.double().exp().cumsum(-1)
        total_R1 = cumulative_RV[:, -1:]
        below_R1 = torch.nextafter(total_R1, torch.zeros_like(total_R1))
        target_R1 = torch.minimum(uniform_R[:, None] * total_R1, below_R1)
        token_R = torch.searchsorted(cumulative_RV, target_R1, right=True)[:, 0]
    return token_R, log_probs_RV.gather(-1, token_R[:, None])[:, 0]
