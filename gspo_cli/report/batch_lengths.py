"""Ratio spread, clips and weights by response length, in octaves.

B = responses, T = response token positions, N = tokens
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gspo_cli.algorithms.ratio import sequence_log_ratio, token_log_ratio
from gspo_cli.algorithms.ratio_metrics import within_variance
from gspo_cli.report.batch_losses import Loss, TokenScores, weight_quantiles

MIN_RESPONSES = 5
"""A bucket with fewer has no part in the slope."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How far importance ratios are spread over some responses, in nats; standard deviations with n - 1."""

    responses: int
    tokens: int
    mean_length: float
    token_log_std: float | None
    """Of log w over tokens."""
    seq_log_std: float | None
    """Of log s over responses."""
    independent_seq_log_std: float | None
    """What it would be if token log-ratios were independent: token_log_std / sqrt(mean length)."""
    within_seq_log_var: float
    """Variance of log w within a response, mean over responses."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The responses of `low` to `high` tokens."""

    low: int
    high: int
    spread: Spread
    algorithms: dict[str, dict[str, Any]]
    """Of each: the share of clipped tokens (None without a clip), its part of the sum of |dJ/dl|, and quantiles of
    |dJ/dl| over tokens with an advantage, in units of the algorithm's mean over the whole batch."""


def spread(scores: TokenScores, rows_B: Tensor) -> Spread:
    """Over the responses that `rows_B` marks."""
    mask_BT = scores.mask_BT[rows_B]
    log_w_BT = token_log_ratio(scores.now_BT[rows_B], scores.old_BT[rows_B], mask_BT)
    log_s_B = sequence_log_ratio(scores.now_BT[rows_B], scores.old_BT[rows_B], mask_BT)[:, 0]
    token_std, mean_length = _std(log_w_BT[mask_BT]), float(mask_BT.sum()) / len(mask_BT)
    return Spread(
        responses=len(mask_BT),
        tokens=int(mask_BT.sum()),
        mean_length=mean_length,
        token_log_std=token_std,
        seq_log_std=_std(log_s_B),
        independent_seq_log_std=None if token_std is None else token_std / math.sqrt(mean_length),
        within_seq_log_var=float(within_variance(log_w_BT, mask_BT).mean()),
    )


def buckets(scores: TokenScores, found: Mapping[str, Loss]) -> list[Bucket]:
    """One an octave of lengths (1, 2-3, 4-7, 8-15, ...) that has responses, shortest first."""
    lengths_B = scores.mask_BT.sum(-1)
    octaves = sorted({int(length).bit_length() - 1 for length in lengths_B})
    parts = []
    for octave in octaves:
        low, high = 1 << octave, (2 << octave) - 1
        rows_B = (lengths_B >= low) & (lengths_B <= high)
        about = {name: _weights(loss, scores.mask_BT, rows_B) for name, loss in found.items()}
        parts.append(Bucket(low, high, spread(scores, rows_B), about))
    return parts


def slope(parts: list[Bucket]) -> float | None:
    """b of seq_log_std ~ length^b over the buckets: least squares of the logarithms, weighted by responses; -1/2 for
    independent tokens. None below two buckets of `MIN_RESPONSES` responses, and where nothing is spread."""
    points = [
        (math.log(b.spread.mean_length), math.log(b.spread.seq_log_std), b.spread.responses)
        for b in parts
        if b.spread.seq_log_std and b.spread.responses >= MIN_RESPONSES
    ]
    return weighted_slope(points)


def weighted_slope(points: list[tuple[float, float, int]]) -> float | None:
    """b of y = a + b x by least squares over (x, y, weight); None below two points."""
    if len(points) < 2:
        return None
    x, y, weight = torch.tensor(points, dtype=torch.float64).unbind(1)
    x, y = x - (weight * x).sum() / weight.sum(), y - (weight * y).sum() / weight.sum()
    return float((weight * x * y).sum() / (weight * x.square()).sum())


def _weights(loss: Loss, mask_BT: Tensor, rows_B: Tensor) -> dict[str, Any]:
    here_BT = mask_BT & rows_B[:, None]
    absolute_BT = loss.weight_BT.abs()
    total, clipped_BT = float(absolute_BT.sum()), loss.output.clipped_BT
    return {
        "clip_token_frac": None if clipped_BT is None else float((clipped_BT & here_BT).sum()) / int(here_BT.sum()),
        "weight_share": float(absolute_BT[here_BT].sum()) / total if total else None,
        "weight_quantiles": weight_quantiles(loss, mask_BT, here_BT),
    }


def _std(values_N: Tensor) -> float | None:
    return float(values_N.std()) if len(values_N) > 1 else None
