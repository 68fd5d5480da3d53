"""From a scored rollout batch to mini-batches of whole groups, and from these to micro-batches, padded or packed.

B = responses, T = token positions, L = MoE layers, N = tokens whose experts count, K = experts per token,
M = loss tokens
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gspo_cli.algorithms import AlgorithmSpec
from gspo_cli.algorithms.critic import whiten_responses
from gspo_cli.algorithms.ops import group_advantage
from gspo_cli.config import Recipe
from gspo_cli.distributed import SINGLE_PROCESS, Ranks
from gspo_cli.models.device import upload
from gspo_cli.models.packing import pack
from gspo_cli.moe.routers import Routing
from gspo_cli.training.step.noise import RecordedNoise, noise_matrix, route_noise
from gspo_cli.types import Group, MicroBatch, MiniBatch, RolloutBatch, Sample


@dataclass(frozen=True)
class Batching:
    """How a rollout batch is divided into mini-batches, micro-batches and ranks."""

    minibatches: int
    micro_batch_tokens: int
    keep_rows_without_advantage: bool = False
    """With a KL penalty, a critic or a loss that reads every row they have a gradient too."""
    whole_groups: bool = False
    """Keep the responses to a prompt in one micro-batch, those without an advantage too if any has one."""
    mask_truncated: bool = False
    """Leave responses that the length limit ended out of the loss and its denominators."""
    routing: Routing | None = None
    """The model's routers, if the engine's expert choices are carried along."""
    packed: bool = False
    """Feed the model rows without padding, each prompt once."""
    ranks: Ranks = SINGLE_PROCESS
    """The rows are divided over them."""
    attention: float = 0.0
    """Attention's share of the arithmetic: that of a row of T tokens is in proportion to T (1 + attention T)."""
    noise: RecordedNoise | None = None
    """Synthetic noise on the old policy's log-probabilities."""


@dataclass(frozen=True)
class Row:
    """One response on its way into a mini-batch."""

    prompt_ids: tuple[int, ...]
    sample: Sample
    advantage: float
    credits: tuple[float, ...] | None = None
    """A factor on the advantage of each token."""
    group: int = 0
    """Number of its prompt in the rollout batch."""

    @property
    def length(self) -> int:
        """Prompt and response tokens."""
        return len(self.prompt_ids) + len(self.sample.token_ids)


def rewards_and_groups(batch: RolloutBatch, overlong_cache_frac: float | None = None) -> tuple[Tensor, Tensor]:
    """Rewards [B] in float64, NaN where unscored, and each response's group [B], in batch order.

    Over the last `overlong_cache_frac` of the length limit the reward falls linearly by up to 1
    (arXiv 2503.14476, Eq. 13). Logged rewards are the task's, without this punishment.
    """
    values = [s.value for g in batch.groups for s in g.scores]
    rewards_B = torch.tensor([float("nan") if v is None else v for v in values], dtype=torch.float64)
    groups_B = torch.tensor([i for i, g in enumerate(batch.groups) for _ in g.samples])
    if overlong_cache_frac is not None:
        lengths_B = torch.tensor([len(s.token_ids) for g in batch.groups for s in g.samples], dtype=torch.float64)
        start = (1 - overlong_cache_frac) * batch.max_new_tokens
        rewards_B = rewards_B - ((lengths_B - start) / (batch.max_new_tokens - start)).clamp(0, 1)
    return rewards_B, groups_B


def advantages_of(batch: RolloutBatch, recipe: Recipe, algorithm: AlgorithmSpec, params: Any) -> Tensor:
    """Advantages of a rollout batch [B], before it is split, 0 where unscored.

    With `task.combine = "gdpo"` each reward is divided by its own deviation in the group before they are added, and the
    sum is whitened over the batch's tokens (arXiv 2601.05242), whatever the algorithm's own advantage is.
    """
    rewards_B, groups_B = rewards_and_groups(batch, recipe.algo.overlong_cache_frac)
    rows = [(sample, score) for g in batch.groups for sample, score in zip(g.samples, g.scores, strict=True)]
    if recipe.task.combine == "gdpo":
        advantages_B = torch.zeros(len(rows))
        for index, reward in enumerate(recipe.task.rewards):
            values = [float("nan") if score.value is None else score.parts[index][1] for _, score in rows]
            part_B = torch.tensor(values, dtype=torch.float64)
            advantages_B = advantages_B + reward.weight * group_advantage(part_B, groups_B)
    else:
        advantages_B = algorithm.advantage(rewards_B, groups_B, params)
        if not algorithm.WHITEN:
            return advantages_B
    masks = recipe.algo.truncation == "mask"
    lengths = [
        0 if score.value is None or (masks and sample.finish == "length") else len(sample.token_ids)
        for sample, score in rows
    ]
    return whiten_responses(advantages_B, torch.tensor(lengths))


def make_mini_batches(
    batch: RolloutBatch, advantages_B: Tensor, batching: Batching, device: torch.device
) -> list[MiniBatch]:
    """The mini-batches of a rollout batch, one for each optimizer step.

    Rows whose advantage is 0 have no gradient and are left out of the micro-batches; the mini-batch's mask, from
    which denominators are taken, keeps them.
    """
    values = iter(advantages_B.tolist())
    rows = [
        [
            Row(g.prompt.token_ids, s, next(values), g.credits[i] if g.credits else None, number)
            for i, s in enumerate(g.samples)
        ]
        for number, g in enumerate(batch.groups)
    ]
    scored = [[score.value is not None for score in g.scores] for g in batch.groups]
    mini_batches = []
    for part in split(batch.groups, batching.minibatches):
        # a response that could not be scored, or is masked by policy, leaves numerator and denominators alike
        known = [r for i in part for r, is_scored in zip(rows[i], scored[i], strict=True) if is_scored]
        counted = [r for r in known if not (batching.mask_truncated and r.sample.finish == "length")]
        kept = {r.group for r in counted if r.advantage != 0 and batching.whole_groups}
        trained = [r for r in counted if r.advantage != 0 or batching.keep_rows_without_advantage or r.group in kept]
        counted_lengths, trained_lengths = ([len(r.sample.token_ids) for r in some] for some in (counted, trained))
        mini_batches.append(
            MiniBatch(
                micro_batches=make_micro_batches(trained, batching, device),
                mask_BT=torch.arange(max(counted_lengths, default=0)) < torch.tensor(counted_lengths)[:, None],
                num_skipped=len(counted) - len(trained),
                skipped_tokens=sum(counted_lengths) - sum(trained_lengths),
            )
        )
    return mini_batches


def split(groups: tuple[Group, ...], parts: int) -> list[list[int]]:
    """Group indices of each mini-batch: whole groups in order, sizes differing by at most one."""
    return [part.tolist() for part in torch.arange(len(groups)).tensor_split(parts)]


def make_micro_batches(rows: list[Row], batching: Batching, device: torch.device) -> list[MicroBatch]:
    """This rank's passes over a mini-batch, filled up to as many as any rank has."""
    cut = cut_packed if batching.packed else cut_padded
    units = [[row] for row in rows]
    if batching.whole_groups:
        units = [sorted(group, key=lambda r: -r.length) for _, group in groupby(rows, key=lambda r: r.group)]
    shares = balance(units, batching.ranks.size, batching.attention)
    by_rank = [cut(share, batching.micro_batch_tokens) for share in shares]
    settings = (device, batching.packed, batching.routing, batching.noise)
    mine = [lay_out(chunk, *settings) for chunk in by_rank[batching.ranks.rank]]
    for _ in range(max(map(len, by_rank)) - len(mine)):
        mine.append(lay_out([min(rows, key=lambda r: r.length)], *settings))
        mine[-1].filler = True
    return mine


def balance(units: list[list[Row]], parts: int, attention: float = 0.0) -> list[list[list[Row]]]:
    """Divides units into parts with about equally much arithmetic: the largest first, each to the emptiest part.

    A unit is what one micro-batch must hold: a row, or the rows of a prompt, the longest first. Within a part they stay
    in order, so that responses to one prompt stay together.
    """
    if parts == 1:
        return [units]
    sizes = [sum(row.length * (1 + attention * row.length) for row in unit) for unit in units]
    filled, part_of = [0.0] * parts, [0] * len(units)
    for i in sorted(range(len(units)), key=lambda i: -sizes[i]):
        part_of[i] = min(range(parts), key=filled.__getitem__)
        filled[part_of[i]] += sizes[i]
    return [[unit for unit, its_part in zip(units, part_of, strict=True) if its_part == part] for part in range(parts)]


def cut_padded(units: list[list[Row]], budget: int) -> list[list[Row]]:
    """Units, longest first, in chunks of at most `budget` padded tokens (at least one unit each)."""
    chunks: list[list[Row]] = []
    for unit in sorted(units, key=lambda u: -u[0].length):
        if not chunks or (len(chunks[-1]) + len(unit)) * chunks[-1][0].length > budget:
            chunks.append([])
        chunks[-1] += unit
    return chunks


def cut_packed(units: list[list[Row]], budget: int) -> list[list[Row]]:
    """Units in chunks of at most `budget` tokens (at least one unit each), a prompt counting once in each."""
    chunks: list[list[Row]] = []
    tokens, prompts = 0, set[tuple[int, ...]]()
    for unit in units:
        prompt_ids, answers = unit[0].prompt_ids, sum(len(row.sample.token_ids) for row in unit)
        if not chunks or tokens + answers + (0 if prompt_ids in prompts else len(prompt_ids)) > budget:
            chunks.append([])
            tokens, prompts = 0, set()
        chunks[-1] += unit
        tokens += answers + (0 if prompt_ids in prompts else len(prompt_ids))
        prompts.add(prompt_ids)
    return chunks


def lay_out(
    rows: list[Row],
    device: torch.device,
    packed: bool = False,
    routing: Routing | None = None,
    noise: RecordedNoise | None = None,
) -> MicroBatch:
    """Rows as tensors, longest first, padded on the right; with `routing`, the engine's expert choices as well."""
    rows = sorted(rows, key=lambda r: -r.length)
    width = rows[0].length
    lengths_B1 = torch.tensor([[row.length] for row in rows])
    starts_B1 = torch.tensor([[len(row.prompt_ids)] for row in rows])
    ids, sampled = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width), np.float32)
    for i, row in enumerate(rows):  # numpy reads numbers of Python four times as fast as torch
        response = slice(len(row.prompt_ids), row.length)
        ids[i, : response.start], ids[i, response] = row.prompt_ids, row.sample.token_ids
        sampled[i, response] = row.sample.log_probs
    ids_BT, sampled_BT = torch.from_numpy(ids), torch.from_numpy(sampled)
    positions_T = torch.arange(width)
    mask_BT = (positions_T >= starts_B1) & (positions_T < lengths_B1)
    advantages = torch.tensor([r.advantage for r in rows])
    if any(r.credits is not None for r in rows):
        advantages = advantages[:, None].expand_as(mask_BT) * credit_matrix(rows, width)
    packing = pack([r.prompt_ids + r.sample.token_ids for r in rows]) if packed else None
    index_BT = packing.index_BT if packing else torch.arange(mask_BT.numel()).view(mask_BT.shape)
    positions_N, first_N = unique_first(index_BT[positions_T < lengths_B1 - 1])
    predicts_M = torch.searchsorted(positions_N, index_BT[:, :-1][mask_BT[:, 1:]])
    loss_M = mask_BT.flatten().nonzero()[:, 0]
    micro = MicroBatch(
        upload(ids_BT, device), upload(mask_BT, device), upload(advantages, device), upload(sampled_BT, device),
        upload(positions_N, device), upload(predicts_M, device), upload(loss_M, device),
        upload(torch.tensor([r.group for r in rows]), device),
        packing.to(device) if packing else None,
    )  # fmt: skip
    if routing is not None:
        micro.sampler_routes_LNK = upload(sampled_routes(rows, routing)[:, first_N].contiguous(), device)
    if noise is not None:
        micro.noise_BT = upload(noise_matrix(noise, [(len(r.prompt_ids), r.sample) for r in rows], width), device)
        micro.route_noise = route_noise(noise)
    return micro


def credit_matrix(rows: list[Row], width: int) -> Tensor:
    """The factor on each token's advantage, 1 where a row has none: [B, T]."""
    credits_BT = torch.ones(len(rows), width)
    for i, row in enumerate(rows):
        if row.credits is not None:
            credits_BT[i, len(row.prompt_ids) : row.length] = torch.tensor(row.credits)
    return credits_BT


def unique_first(values: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct values, ascending, and the index of each one's first occurrence."""
    order = values.argsort(stable=True)
    distinct, counts = values[order].unique_consecutive(return_counts=True)
    return distinct, order[counts.cumsum(0) - counts]


def sampled_routes(rows: list[Row], routing: Routing) -> Tensor:
    """The engine's choices for the tokens of all rows but each row's last, one row after the other: [L, tokens, K];
    `routing.missing` where it recorded none."""
    parts = []
    for row in rows:
        routes_TLK = row.sample.routes_TLK
        if routes_TLK is None:
            shape = (row.length - 1, len(routing.layers), routing.top_k)
            parts.append(torch.full(shape, routing.missing, dtype=routing.dtype))
        else:
            parts.append(torch.from_numpy(routes_TLK).to(routing.dtype))
    return torch.cat(parts).movedim(0, 1)
