"""Correction weights, KL penalties and the critic's loss in plain Python loops."""

import math
from dataclasses import dataclass

from oracle_batch import Grid, ratio, saturated

CORRECTION_BOUNDS = {
    "tis": (0.0, 2.0),
    "icepop": (0.5, 5.0),
    "seq_mask": (0.99, 1.01),
    "seq_mask_tis": (0.999, 1.002),
    "seq_tis": (0.0, 2.0),
}


@dataclass(frozen=True)
class Penalty:
    """A term that is minimised, with a numerator and a denominator of its own."""

    numerator: float
    denominator: float
    weight: Grid
    """denominator * d term / d input, as it is backpropagated; 0 outside the mask."""
    num_clipped: int = 0
    """Critic: tokens where the clipped square is the larger."""


def correction_weight(
    old: Grid, sampler: Grid, mask: list[list[bool]], unit: str, kind: str, bounds: tuple[float, float] | None = None
) -> Grid:
    """The weight of each loss token for c = exp(o - m), or for a sequence algorithm c = exp(mean_t (o - m)).

    tis: min(c, C). icepop: c inside [a, b], else 0. seq_mask, in any unit: 1 if exp(mean_t (o - m)) lies in [a, b],
    else 0. seq_mask_tis: c where exp(mean_t (o - m)) lies in [a, b], else 0. seq_tis: min(exp(sum_t (o - m)), C).
    Outside the mask the weight is 1.
    """
    low, high = bounds or CORRECTION_BOUNDS.get(kind, (0.0, math.inf))
    weights = [[1.0] * len(row) for row in mask]
    for i, row in enumerate(mask):
        positions = [t for t, is_loss in enumerate(row) if is_loss]
        if not positions or kind == "none":
            continue
        gaps = {t: old[i][t] - sampler[i][t] for t in positions}
        mean = math.fsum(gaps.values()) / len(positions)
        for t in positions:
            c = ratio(gaps[t] if unit == "token" and kind != "seq_mask" else mean)
            kept, whole = low <= c <= high, low <= ratio(mean) <= high
            weights[i][t] = {
                "tis": min(c, high),
                "icepop": c if kept else 0.0,
                "seq_mask": float(kept),
                "seq_mask_tis": c if whole else 0.0,
                "seq_tis": min(ratio(math.fsum(gaps.values())), high),
            }[kind]
    return weights


def kl_penalty(log_probs: Grid, ref: Grid, mask: list[list[bool]], estimator: str, share: str, count: str) -> Penalty:
    """k1 = l - ref with the gradient (l - ref) dl; k3 = exp(ref - l) - (ref - l) - 1 with its own, 1 - exp(ref - l).

    `share` is `mean` (1/L_i a token) or `sum`; `count` is N or T.
    """
    weight = [[0.0] * len(row) for row in mask]
    summands, lengths = [], []
    for i, row in enumerate(mask):
        positions = [t for t, is_loss in enumerate(row) if is_loss]
        lengths.append(len(positions))
        for t in positions:
            gap = ref[i][t] - log_probs[i][t]
            factor = 1 / len(positions) if share == "mean" else 1.0
            k1, k3 = -gap, ratio(gap) - max(-20.0, min(20.0, gap)) - 1
            slopes = {"k1": -gap, "k3": 0.0 if saturated(gap) else 1 - ratio(gap)}
            summands.append({"k1": k1, "k3": k3}[estimator] * factor)
            weight[i][t] = slopes[estimator] * factor
    denominator = sum(lengths) if count == "T" else sum(length > 0 for length in lengths)
    return Penalty(math.fsum(summands), denominator, weight)


def value_loss(values: Grid, old_values: Grid, returns: Grid, mask: list[list[bool]], clip: float) -> Penalty:
    """0.5 * mean over loss tokens of max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2).

    Its slope in V is V - R where V lies in the range or the unclipped square is the larger, else 0.
    """
    weight = [[0.0] * len(row) for row in mask]
    summands, num_clipped = [], 0
    for i, row in enumerate(mask):
        for t in (t for t, is_loss in enumerate(row) if is_loss):
            v, old, target = values[i][t], old_values[i][t], returns[i][t]
            limited = max(old - clip, min(old + clip, v))
            plain, bounded = (v - target) ** 2, (limited - target) ** 2
            summands.append(0.5 * max(plain, bounded))
            weight[i][t] = v - target if v == limited or plain > bounded else 0.0
            num_clipped += bounded > plain
    return Penalty(math.fsum(summands), len(summands), weight, num_clipped)
