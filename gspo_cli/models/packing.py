"""Rows of tokens without padding, with shared prefixes stored once: the input of a training pass.

Everything but attention works on single tokens, so rows are laid one after the other. Rows with a common prefix (all
responses to one prompt) share its tokens: under causal attention they compute the same in each row. Only attention sees
rows again, in blocks of similar length; there is no attention mask anywhere.

B = responses, T = token positions of a row, N = tokens fed, H = heads, D = head dimension
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gspo_cli.models.device import upload

MIN_LENGTH_SHARE = 0.7  # of a block's longest row: shorter rows start a new block


@dataclass(frozen=True, slots=True)
class Packing:
    """Token rows laid one after the other."""

    input_ids: Tensor
    """[1, N]."""
    position_ids: Tensor
    """[1, N]; counted from 0 in each row."""
    index_BT: Tensor
    """Which of the N each row's token is; 0 at padding."""
    blocks: tuple[Tensor, ...]
    """The rows for attention, longest first; each block is only as wide as its longest row."""
    unpack_N: Tensor
    """The position of each of the N in the flattened blocks (in one of its rows, if it is shared)."""

    def to(self, device: torch.device) -> Packing:
        ids, positions, index_BT, unpack_N = (
            upload(t, device) for t in (self.input_ids, self.position_ids, self.index_BT, self.unpack_N)
        )
        return Packing(ids, positions, index_BT, tuple(upload(block, device) for block in self.blocks), unpack_N)


def pack(rows: list[tuple[int, ...]]) -> Packing:
    """Packs rows of prompt and response."""
    ids: list[int] = []
    positions: list[int] = []
    width = max(map(len, rows))
    index = np.zeros((len(rows), width), np.int64)
    order = sorted(range(len(rows)), key=rows.__getitem__)  # so that the previous row shares the longest prefix
    for before, b in zip([order[0], *order], order, strict=False):
        row, shared = rows[b], shared_prefix(rows[before], rows[b]) if ids else 0
        index[b, :shared] = index[before, :shared]
        index[b, shared : len(row)] = np.arange(len(ids), len(ids) + len(row) - shared)
        ids += row[shared:]
        positions += range(shared, len(row))
    index_BT = torch.from_numpy(index)
    # a row that is a prefix of another needs no attention of its own
    whole = [b for b, after in pairwise(order) if rows[after][: len(rows[b])] != rows[b]] + order[-1:]
    blocks, unpack_N = make_blocks(index_BT, sorted((len(rows[b]), b) for b in whole)[::-1], len(ids))
    fed_1N, positions_1N = (torch.from_numpy(np.array([numbers], np.int64)) for numbers in (ids, positions))
    return Packing(fed_1N, positions_1N, index_BT, blocks, unpack_N)


def shared_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """The number of equal tokens at the start of both rows."""
    pairs = zip(one, other, strict=False)
    return next((t for t, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def make_blocks(index_BT: Tensor, rows: list[tuple[int, int]], num_tokens: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """`Packing.blocks` and `unpack_N` for rows given as (length, row number), longest first."""
    blocks: list[Tensor] = []
    is_token: list[Tensor] = []
    while rows:
        width = rows[0][0]
        block = [row for row in rows if row[0] >= MIN_LENGTH_SHARE * width]
        rows = rows[len(block) :]
        blocks.append(index_BT[[b for _, b in block], :width])
        is_token.append((torch.arange(width) < torch.tensor([length for length, _ in block])[:, None]).flatten())
    filled = torch.cat(is_token)
    unpack_N = torch.empty(num_tokens, dtype=torch.long)
    unpack_N[torch.cat([block.flatten() for block in blocks])[filled]] = filled.nonzero()[:, 0]
    return tuple(blocks), unpack_N


def take_rows(values_NX: Tensor, index: Tensor) -> Tensor:
    """`values_NX[index]`, as an embedding, whose backward pass adds up repeated rows many times faster on a CPU."""
    return F.embedding(index, values_NX)
