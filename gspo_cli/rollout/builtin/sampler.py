"""The built-in sampler: computes each distinct prefix once, preallocates its cache, drops finished rows, and keeps no
random state.

B = live responses, R = rows being decoded, P = prompts, T = positions, V = vocabulary, L = MoE layers, K = experts
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.admission import paths_of
from gspo_cli.models.decoding import CachedRows, Indices, OwnRows, Rows
from gspo_cli.models.device import upload_together
from gspo_cli.models.fixed import FixedRows, FixedStep
from gspo_cli.models.trunk import head_logits
from gspo_cli.moe.hooks import RouterTap, tapped
from gspo_cli.moe.routers import Routing
from gspo_cli.seeds import GAMMA, mix_bits, shift_right
from gspo_cli.types import Sampling

if TYPE_CHECKING:
    from gspo_cli.types import RoutesArray


DROP_SHARE = 0.25  # of the rows must have lost all responses before the rest is copied together
BLOCK = 64  # tokens for which random numbers are made at a time
SORTED_AT_ONCE = 1 << 22  # probabilities, for top-p
SPAN = 128  # neighbouring tokens whose probabilities are summed in float32
Assign = Callable[[Indices, Indices, int], tuple[Indices, Indices, Indices]]
"""How responses are given to the rows of the next pass: `branch` or `in_place`."""
Count = Callable[[int, int, int], None]
"""Called after each pass: tokens drawn, responses that end with them, the tokens' index in their responses."""


@dataclass(slots=True)
class Drawn:
    """The tokens of one response and their log-probabilities."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    stopped: bool = False
    """True if a stop token ended it, False if the length limit did."""
    routes_TLK: RoutesArray | None = None
    """The experts of every token of prompt and response except the last, if wanted."""


@torch.no_grad()
def sample(
    model: PreTrainedModel, prompts: list[tuple[int, ...]], seeds: list[list[int]], sampling: Sampling,
    stop_ids: frozenset[int], deadline: float, routing: Routing | None = None,
    count: Count = lambda _drawn, _ended, _position: None, step: FixedStep | None = None,
) -> list[list[Drawn]]:  # fmt: skip
    """Draws len(seeds[p]) responses to each prompt p, one per seed.

    A response's tokens depend only on the weights, its prompt and its seed, not on the rest of the batch (which moves
    log-probabilities in the sixth digit). Temperature 0 takes the likeliest token and gives its log-probability at
    temperature 1. The model must be in `eval` mode.
    `count` is told of every token. `step`: decode by it, for a model with a shared cache and without `routing`.
    Errors: GspoError (exit code 5) when `time.monotonic()` passes the deadline.
    """
    assert not model.training and not (step and routing)
    prompt_of = [p for p, group in enumerate(seeds) for _ in group]
    flat_seeds = np.array([s for group in seeds for s in group], dtype=np.uint64)
    drawn = [Drawn() for _ in prompt_of]
    cache = paths_of(model).cache
    shared, sizes = cache == "shared", (sampling.max_new_tokens, len(prompt_of))
    with tapped(routing) as tap:
        for length in (None,) if shared else sorted({len(p) for p in prompts}):
            chosen = [i for i, p in enumerate(prompt_of) if length in (None, len(prompts[p]))]
            if shared:
                own, row_of, assign = prompts, prompt_of, branch
                rows: Rows = FixedRows(model, prompts, *sizes, step) if step else CachedRows(model, prompts, *sizes)
            else:
                own, row_of, assign = [prompts[prompt_of[i]] for i in chosen], list(range(len(chosen))), in_place
                rows = OwnRows(model, own, use_cache=cache == "own")
            recorder = RouteRecorder(tap, own, row_of, sampling.max_new_tokens) if tap else None
            its_drawn, its_seeds = [drawn[i] for i in chosen], flat_seeds[chosen]
            _decode(
                model, rows, np.array(row_of), assign, its_seeds, its_drawn, sampling, stop_ids, deadline, recorder,
                count,
            )  # fmt: skip
    in_order = iter(drawn)
    return [[next(in_order) for _ in group] for group in seeds]


def _decode(
    model: PreTrainedModel, rows: Rows, row_of: Indices, assign: Assign, seeds: NDArray[np.uint64], drawn: list[Drawn],
    sampling: Sampling, stop_ids: frozenset[int], deadline: float, recorder: RouteRecorder | None, count: Count,
) -> None:  # fmt: skip
    """Fills the responses token by token; `row_of`: the row that decodes each."""
    device, max_new_tokens = model.device, sampling.max_new_tokens
    stops = np.array(sorted(stop_ids))
    live = np.arange(len(drawn))  # the responses that have not ended
    steps: list[tuple[Indices, Indices, Tensor]] = []
    for t in range(max_new_tokens):
        if time.monotonic() > deadline:
            raise GspoError(
                f"sampling took too long: {t} of {max_new_tokens} tokens at the deadline",
                "rollout.deadline_s limits the time of one rollout batch",
                "raise rollout.deadline_s, or lower rollout.max_new_tokens, prompts or samples",
                ExitCode.ENGINE,
            )
        if t % BLOCK == 0:
            block_BT = uniforms(seeds[live], t, BLOCK)
        rows_B, uniform_B = upload_together([row_of, block_BT[:, t % BLOCK]], device)
        token_B, log_prob_B = draw(head_logits(model, rows.hidden_RH), rows_B, uniform_B, sampling)
        tokens = token_B.cpu().numpy()  # the one time per token that the host waits for the device
        steps.append((live, tokens, log_prob_B))
        continues = ~np.isin(tokens, stops)
        count(len(live), len(live) if t + 1 == max_new_tokens else len(live) - int(continues.sum()), t)
        live, row_of, tokens, block_BT = live[continues], row_of[continues], tokens[continues], block_BT[continues]
        if not len(live) or t + 1 == max_new_tokens:
            break
        sources, next_tokens, row_of = assign(row_of, tokens, len(rows.hidden_RH))
        rows.step(sources, next_tokens)
        if recorder:
            recorder.record(live, row_of, t, len(rows.hidden_RH))

    log_probs = iter(torch.cat([log_prob_B for _, _, log_prob_B in steps]).tolist())
    for responses, tokens, _ in steps:
        for response, token in zip(responses.tolist(), tokens.tolist(), strict=True):
            drawn[response].token_ids.append(token)
            drawn[response].log_probs.append(next(log_probs))
    for i, response in enumerate(drawn):
        response.stopped = response.token_ids[-1] in stop_ids
        if recorder:
            response.routes_TLK = recorder.routes(i, len(response.token_ids))


def branch(row_of: Indices, tokens: Indices, num_rows: int) -> tuple[Indices, Indices, Indices]:
    """The rows of the next pass: one for each distinct (row, next token) among the live responses.

    Returns the row that each continues, its token, and which of them decodes each response. A row's first continuation
    stays where it is; others go to rows whose responses have all ended, then to new ones. Rows without responses stay
    until `DROP_SHARE` of all can be dropped at once.
    """
    (parents, next_tokens), position = np.unique(np.stack([row_of, tokens]), axis=1, return_inverse=True)
    is_first = np.append(True, parents[1:] != parents[:-1])
    others, free = np.flatnonzero(~is_first), np.setdiff1d(np.arange(num_rows), parents)
    size = num_rows + max(0, len(others) - len(free))
    places = parents.copy()
    places[others] = np.append(free, np.arange(num_rows, size))[: len(others)]
    free = free[len(others) :]
    if len(free) >= DROP_SHARE * size:
        size = len(places)
        places[places >= size] = free[free < size]
    sources, row_tokens = np.arange(size), np.zeros(size, dtype=np.int64)
    sources[places], row_tokens[places] = parents, next_tokens
    return sources, row_tokens, places[position.reshape(-1)]  # numpy 2.0 gave the positions two axes


def in_place(row_of: Indices, tokens: Indices, num_rows: int) -> tuple[Indices, Indices, Indices]:
    """The same where every response keeps a row of its own; those that have ended go on unread."""
    row_tokens = np.zeros(num_rows, dtype=np.int64)
    row_tokens[row_of] = tokens
    return np.arange(num_rows), row_tokens, row_of


def draw(logits_RV: Tensor, rows_B: Tensor, uniform_B: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """One token for each response by inverting its row's cumulative distribution, with its float32 log-probability
    under the distribution it was drawn from.

    Probabilities are float32, their sums over `SPAN` neighbours too; sums of these sums, and those within the one span
    that the uniform number points to, are float64. The number is scaled by the distribution's own sum and kept below
    it, so that rounding can never point past the last token with a probability.
    """
    if sampling.temperature == 0:
        log_probs_RV = torch.log_softmax(logits_RV.float(), dim=-1)
        token_B = log_probs_RV.argmax(-1)[rows_B]
        return token_B, log_probs_RV[rows_B, token_B]
    scores_RV = logits_RV.float() / sampling.temperature
    if sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0:
        scores_RV = truncate(torch.log_softmax(scores_RV, dim=-1), sampling)
    weights_RV = scores_RV.sub_(scores_RV.amax(-1, keepdim=True)).exp_()
    vocabulary = weights_RV.shape[-1]
    if vocabulary <= SPAN:
        return _draw_within(weights_RV, rows_B, uniform_B)
    whole = vocabulary - vocabulary % SPAN
    spans_RS = weights_RV[:, :whole].unflatten(-1, (-1, SPAN)).sum(-1)
    if whole < vocabulary:
        spans_RS = torch.cat([spans_RS, weights_RV[:, whole:].sum(-1, keepdim=True)], -1)
    cumulative_RS = spans_RS.double().cumsum(-1)
    total_B1 = cumulative_RS[rows_B, -1:]
    target_B1 = torch.minimum(uniform_B[:, None] * total_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
    span_B1 = torch.searchsorted(cumulative_RS[rows_B], target_B1, right=True)
    before_B1 = torch.where(span_B1 > 0, cumulative_RS[rows_B[:, None], (span_B1 - 1).clamp(min=0)], 0.0)
    token_BS = span_B1 * SPAN + torch.arange(SPAN, device=span_B1.device)
    within_BS = weights_RV[rows_B[:, None], token_BS.clamp(max=vocabulary - 1)].double()
    within_BS = within_BS.masked_fill(token_BS >= vocabulary, 0.0).cumsum(-1)
    # the span's own sum is rounded: the number must stay below the sum within it
    target_B1 = torch.minimum(target_B1 - before_B1, torch.nextafter(within_BS[:, -1:], torch.zeros_like(total_B1)))
    index_B1 = torch.searchsorted(within_BS, target_B1, right=True)
    token_B = token_BS.gather(-1, index_B1)[:, 0]
    return token_B, (weights_RV[rows_B, token_B].log().double() - total_B1[:, 0].log()).float()


def _draw_within(weights_RV: Tensor, rows_B: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """The same for a vocabulary of one span, in fewer operations: a small model waits for each of them."""
    total_R1, cumulative_RV = weights_RV.sum(-1, keepdim=True).double(), weights_RV.double().cumsum(-1)
    end_R1 = torch.minimum(total_R1, cumulative_RV[:, -1:])
    below_R1 = torch.nextafter(end_R1, torch.zeros_like(end_R1))
    target_B1 = torch.minimum(uniform_B[:, None] * total_R1[rows_B], below_R1[rows_B])
    token_B = torch.searchsorted(cumulative_RV[rows_B], target_B1, right=True)[:, 0]
    return token_B, (weights_RV[rows_B, token_B].log().double() - total_R1[rows_B, 0].log()).float()


def truncate(log_probs_RV: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities of the kept tokens, renormalised; -inf for the others. The likeliest token always stays.

    After the temperature: min-p drops tokens below min_p times the likeliest; top-k drops those below the k-th of the
    rest, keeping ties with it; top-p drops the unlikeliest, whose mass together is at most 1 - top_p.
    Shapes: nats [R, V] -> [R, V].
    """
    if sampling.min_p > 0:
        lowest_R1 = log_probs_RV.amax(-1, keepdim=True).exp() * sampling.min_p
        log_probs_RV = _keep(log_probs_RV, log_probs_RV.exp() >= lowest_R1)
    if 0 < sampling.top_k < log_probs_RV.shape[-1]:
        kth_R1 = log_probs_RV.topk(sampling.top_k, dim=-1).values[:, -1:]
        log_probs_RV = _keep(log_probs_RV, log_probs_RV >= kth_R1)
    if sampling.top_p < 1:
        kept_RV = torch.empty_like(log_probs_RV, dtype=torch.bool)
        size = max(1, SORTED_AT_ONCE // log_probs_RV.shape[-1])
        for part_RV, kept in zip(log_probs_RV.split(size), kept_RV.split(size), strict=True):
            ascending_RV, order_RV = part_RV.sort(dim=-1, stable=True)
            enough_RV = ascending_RV.double().exp().cumsum(-1) > 1 - sampling.top_p
            enough_RV[:, -1] = True
            kept.scatter_(-1, order_RV, enough_RV)
        log_probs_RV = _keep(log_probs_RV, kept_RV)
    return log_probs_RV


def _keep(log_probs_RV: Tensor, kept_RV: Tensor) -> Tensor:
    return log_probs_RV.masked_fill(~kept_RV, -torch.inf).log_softmax(-1)


def uniforms(seeds: NDArray[np.uint64], first: int, count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) for tokens first..first+count-1 of each seed: [len(seeds), count].

    splitmix64 of seed + (t + 1) * golden gamma, its upper 53 bits as a float64.
    """
    counter_T = np.arange(first + 1, first + count + 1) * GAMMA
    bits_BT = mix_bits(seeds.view(np.int64)[:, None] + counter_T)
    upper_BT: NDArray[np.float64] = shift_right(bits_BT, 11).astype(np.float64)
    return upper_BT * 2.0**-53


class RouteRecorder:
    """Collects the expert choices of each response; created after the prefill, then called after each decoding pass."""

    def __init__(
        self, tap: RouterTap, prompts: list[tuple[int, ...]], prompt_of: list[int], max_new_tokens: int
    ) -> None:
        self.tap, self.prompts, self.prompt_of = tap, prompts, prompt_of
        chosen_NLK = self._chosen().cpu().numpy()
        self.prompt_PTLK = chosen_NLK.reshape(len(prompts), -1, *chosen_NLK.shape[1:])
        self.response_BTLK = np.zeros((len(prompt_of), max_new_tokens, *chosen_NLK.shape[1:]), chosen_NLK.dtype)
        self.waiting: list[tuple[Indices, Indices, int, Tensor]] = []

    def record(self, responses: Indices, rows: Indices, t: int, num_rows: int) -> None:
        """The choices for token `t` of these responses, each decoded in one of the pass's `num_rows` rows: as the last
        of its tokens, which without a cache are fed again."""
        self.waiting.append((responses, rows, t, self._chosen().unflatten(0, (num_rows, -1))[:, -1]))
        if len(self.waiting) == BLOCK:
            self._store()

    def _store(self) -> None:
        """Fetches the choices of several passes at once, so that the host waits for the device seldom."""
        waiting, self.waiting = self.waiting, []
        ends = np.cumsum([len(chosen_RLK) for *_, chosen_RLK in waiting])
        parts = np.split(torch.cat([chosen_RLK for *_, chosen_RLK in waiting]).cpu().numpy(), ends[:-1])
        for (responses, rows, t, _), chosen in zip(waiting, parts, strict=True):
            self.response_BTLK[responses, t] = chosen[rows]

    def routes(self, response: int, num_tokens: int) -> RoutesArray:
        """The choices for prompt and response except the last token, which was never forwarded: [T, L, K]."""
        if self.waiting:
            self._store()
        prompt = self.prompt_of[response]
        padded_TLK = self.prompt_PTLK[prompt]
        prompt_TLK = padded_TLK[len(padded_TLK) - len(self.prompts[prompt]) :]
        return np.concatenate([prompt_TLK, self.response_BTLK[response, : num_tokens - 1]])

    def _chosen(self) -> Tensor:
        return self.tap.natural_LRK.to(self.tap.routing.dtype).movedim(1, 0)
