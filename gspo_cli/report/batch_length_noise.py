"""Whether an algorithm's gradient gets noisier with the length of responses than another's at the same parameters.

B = responses, T = response token positions, R = responses of a bucket, K = entries of a sketch
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_cli.report.batch_data import StoredBatch
from gspo_cli.report.batch_gradients import Sketch
from gspo_cli.report.batch_lengths import MIN_RESPONSES, weighted_slope
from gspo_cli.report.batch_losses import Loss
from gspo_cli.report.batch_policy import Policy, forward

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
    octaves_B = torch.tensor([int(n).bit_length() - 1 for n in lengths_B])
    buckets = [rows for octave in octaves_B.unique() if
               len(rows := ((octaves_B == octave) & counted_B).nonzero()[:, 0]) >= MIN_RESPONSES]  # fmt: skip
    found: dict[str, list[float]] = {name: [] for name in COMPARED}
    for rows in buckets:
        for name, sketch_RK in _sketches(policy, batch, losses, rows.tolist()).items():
            found[name].append(float((sketch_RK - sketch_RK.mean(0)).square().sum() / (len(rows) - 1)))
    sizes, lengths = [len(rows) for rows in buckets], [float(lengths_B[rows].double().mean()) for rows in buckets]
    return LengthNoise(lengths, sizes, found, {name: _slope(lengths, found[name], sizes) for name in COMPARED})


def _slope(lengths: list[float], noise: list[float], sizes: list[int]) -> float | None:
    if len(lengths) < MIN_BUCKETS or min(noise) <= 0:
        return None
    return weighted_slope([(math.log(x), math.log(y), n) for x, y, n in zip(lengths, noise, sizes, strict=True)])


def _sketches(
    policy: Policy, batch: StoredBatch, losses: Mapping[str, Loss], rows: list[int]
) -> dict[str, Tensor]:  # fmt: skip
    """Each response's gradient by algorithm: [R, K]."""
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    sketch = Sketch(sum(p.numel() for p in parameters), policy.model.device)
    found: dict[str, list[Tensor]] = {name: [] for name in COMPARED}
    for row in rows:  # alone: a backward pass costs what the whole forward pass held
        log_probs_N = forward(policy.model, batch, [row])
        for name in COMPARED:
            weight_N = losses[name].weight_BT[row, : len(log_probs_N)].to(log_probs_N)
            parts = torch.autograd.grad(log_probs_N, parameters, weight_N, retain_graph=True, materialize_grads=True)
            found[name].append(sketch.of(parts))
    return {name: torch.stack(rows_K) for name, rows_K in found.items()}
