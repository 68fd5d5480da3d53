"""Ratio spread, clips, weights and gradient noise by response length."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gspo_cli.algorithms.metrics import within_variance
from gspo_cli.algorithms.ops import saturate
from gspo_cli.instruments.batch.data import StoredBatch
from gspo_cli.instruments.batch.gradients import Sketch, weighted_scores
from gspo_cli.instruments.batch.losses import Loss, TokenScores, weight_quantiles
from gspo_cli.instruments.batch.policy import Policy
from gspo_cli.stats.pareto import pareto_k

MIN_RESPONSES = 5
"""A bucket with fewer has no part in the slope."""


@dataclass(frozen=True, slots=True)
class RatioSpread:
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
class LengthBucket:
    """The responses of `low` to `high` tokens."""

    low: int
    high: int
    spread: RatioSpread
    algorithms: dict[str, dict[str, Any]]
    """Of each: the share of clipped tokens (None without a clip), its part of the sum of |dJ/dl|, and quantiles of
    |dJ/dl| over tokens with an advantage, in units of the algorithm's mean over the whole batch."""


def spread(scores: TokenScores, rows_B: Tensor) -> RatioSpread:
    """Over the responses that `rows_B` marks."""
    mask_BT, log_w_BT = scores.mask_BT[rows_B], scores.log_w_BT[rows_B]
    token_std, mean_length = _std(log_w_BT[mask_BT]), float(mask_BT.sum()) / len(mask_BT)
    return RatioSpread(
        responses=len(mask_BT),
        tokens=int(mask_BT.sum()),
        mean_length=mean_length,
        token_log_std=token_std,
        seq_log_std=_std(scores.log_s_B[rows_B]),
        independent_seq_log_std=None if token_std is None else token_std / math.sqrt(mean_length),
        within_seq_log_var=float(within_variance(log_w_BT, mask_BT).mean()),
    )


def tails(scores: TokenScores) -> dict[str, float | None]:
    """Mean of (log w)^2 over all tokens, nat^2, and Pareto k of the ratios of tokens and of sequences: see
    `stats.pareto.pareto_k`; None below 25 ratios, and where they have no tail."""
    log_w_N = scores.log_w_BT[scores.mask_BT]
    return {
        "token_log_square": float(log_w_N.square().mean()),
        "token_pareto_k": _pareto_k(log_w_N),
        "seq_pareto_k": _pareto_k(scores.log_s_B),
    }


def _pareto_k(log_ratio_N: Tensor) -> float | None:
    found = pareto_k(saturate(log_ratio_N).exp().numpy())
    return found if found is not None and math.isfinite(found) else None


def buckets(scores: TokenScores, found: Mapping[str, Loss]) -> list[LengthBucket]:
    """One an octave of lengths (1, 2-3, 4-7, 8-15, ...) that has responses, shortest first."""
    octaves_B = _octaves(scores.mask_BT.sum(-1))
    parts = []
    for octave in octaves_B.unique().tolist():
        rows_B = octaves_B == octave
        about = {name: _weights(loss, scores.mask_BT, rows_B) for name, loss in found.items()}
        parts.append(LengthBucket(1 << octave, (2 << octave) - 1, spread(scores, rows_B), about))
    return parts


def _octaves(lengths_B: Tensor) -> Tensor:
    """floor(log2) of each length."""
    return torch.frexp(lengths_B.double()).exponent - 1


def slope(parts: list[LengthBucket]) -> float | None:
    """b of seq_log_std ~ length^b over the buckets: least squares of the logarithms, weighted by responses; -1/2 for
    independent tokens. None below two buckets of `MIN_RESPONSES` responses, and where nothing is spread."""
    spreads = [b.spread for b in parts if b.spread.seq_log_std and b.spread.responses >= MIN_RESPONSES]
    return log_slope([(s.mean_length, s.seq_log_std, s.responses) for s in spreads])


def log_slope(points: Sequence[tuple[float, float | None, int]]) -> float | None:
    """b of log y = a + b log x by least squares over (x, y, weight); None below two points, or where y is 0."""
    if len(points) < MIN_BUCKETS or not all(y for _, y, _ in points):
        return None
    x, y, weight = torch.tensor(points, dtype=torch.float64).unbind(1)
    x, y = x.log(), y.log()
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


COMPARED = ("grpo", "gspo", "reinforce")
MIN_BUCKETS = 2


@dataclass(frozen=True, slots=True)
class LengthNoise:
    """Of one batch."""

    lengths: list[float]
    """Mean length of each bucket (an octave) of at least `MIN_RESPONSES` responses that count, in tokens."""
    responses: list[int]
    noise: dict[str, list[float]]
    """Algorithm -> trace of the covariance of a response's gradient, bucket by bucket."""
    slopes: dict[str, float | None]
    """Algorithm -> b of noise ~ length^b, least squares of the logarithms weighted by responses; None below
    `MIN_BUCKETS` buckets, or where a bucket has no noise."""


def length_noise(policy: Policy, batch: StoredBatch, losses: Mapping[str, Loss]) -> LengthNoise:
    """The noise of the gradients of `COMPARED` at the policy's parameters, by response length.

    A response's gradient is g_i = sum_t (dJ/dl_it) grad l_it, with advantage, ratio, clip and 1 / L_i in dJ/dl; noise
    of a bucket of n responses = sum_i |g_i - mean|^2 / (n - 1). Responses without an advantage have no part.
    Paper: arXiv 2507.18071, §1 and §4.2 hold that the noise of token ratios accumulates with length; `reinforce` has no
    ratio, so that what lengths do by themselves (difficulty, reward) is in its slope as well.
    Approximation: gradients as sketches (`batch_gradients.Sketch`).
    """
    counted_B = losses["reinforce"].advantages_B != 0
    lengths_B = torch.tensor([len(r.token_ids) for r in batch.responses])
    octaves_B = _octaves(lengths_B)
    buckets = [rows for octave in octaves_B.unique() if
               len(rows := ((octaves_B == octave) & counted_B).nonzero()[:, 0]) >= MIN_RESPONSES]  # fmt: skip
    found: dict[str, list[float]] = {name: [] for name in COMPARED}
    sketch = Sketch(policy.model)
    weight_ABT = torch.stack([losses[name].weight_BT for name in COMPARED])
    for rows in buckets:
        # each response alone: a backward pass costs what the whole forward pass held
        sketches_RA = [
            [sketch.of(parts) for parts in weighted_scores(policy.model, batch, [row], weight_ABT)]
            for row in rows.tolist()
        ]
        for name, sketches_R in zip(COMPARED, zip(*sketches_RA, strict=True), strict=True):
            sketch_RK = torch.stack(sketches_R)
            found[name].append(float((sketch_RK - sketch_RK.mean(0)).square().sum() / (len(rows) - 1)))
    sizes, lengths = [len(rows) for rows in buckets], [float(lengths_B[rows].double().mean()) for rows in buckets]
    slopes = {name: log_slope(list(zip(lengths, found[name], sizes, strict=True))) for name in COMPARED}
    return LengthNoise(lengths, sizes, found, slopes)
