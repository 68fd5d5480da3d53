"""What a clip range discards, given the spread of the log-ratios that it meets; and the range for a wanted share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import expm1, log1p, sqrt

from scipy.special import ndtr, ndtri  # scipy.stats takes half a second to import, and training needs no more

TOO_MUCH, NOTHING = 1 / 3, 1e-3
"""Shares at which a range is said to discard too much, or nothing."""
HEAVY_TAIL, TAIL = 0.05, "weight/negative_tail_frac"
"""Share of the gradient on tokens that only a dual clip bounds, from which one is proposed (a convention), and the
metric that measures it."""
PAPER_RANGE, PAPER_LENGTH = 3e-4, 10_000
"""GSPO's published lower range, and the order of its response lengths (arXiv 2509.09177 takes 10,000 tokens)."""


SCALED = ("gspo", "gspo_token")
"""The algorithms with that range."""
SHORT = {"sequence": "seq", "token": "token"}
"""A unit in the names of metrics."""
NEEDED = ("clip/seq_frac", "clip/token_frac", "clip/token_frac_active", "update/skipped_rows_frac")
"""What `measured_share` reads."""


def measured_share(unit: str, line: Mapping[str, float | None]) -> float | None:
    """Share of the responses (`sequence`) or tokens (`token`) with an advantage that a mini-batch's clip discarded.

    A response without an advantage has no gradient to lose, so it has no part, here as in `share_discarded`.
    `line` = the mini-batch's metrics. None without a hard clip, and where nothing has an advantage.
    """
    of_all, of_active, skipped = (line.get(name) for name in NEEDED[1:])
    if unit == "token":
        return of_all if of_active is None else of_active
    responses = line.get(NEEDED[0])
    if responses is None or skipped == 1:
        return None
    if skipped:
        return responses / (1 - skipped)
    # a KL penalty or a critic keeps every row: the tokens tell how many had no advantage
    return responses * of_active / of_all if of_active and of_all else responses


def dual_clip_advice(tail: float | None, algo: Mapping[str, object]) -> str | None:
    """What to do about heavy ratios on negative advantages; None where there are few, or where a dual clip is set."""
    if tail is None or tail < HEAVY_TAIL or algo.get("dual_clip", 0) is not None:
        return None
    return (
        f"{tail:.0%} of the gradient is on tokens with a negative advantage and a ratio above 3, which the clip leaves "
        "alone; algo.dual_clip = 3 bounds them (tried with router noise on a small mixture: docs/when.md)"
    )


@dataclass(frozen=True, slots=True)
class OffPolicy:
    """What a clip met in the mini-batches after the first of a rollout batch, where ratios leave 1."""

    log_std: float
    """Standard deviation of the log-ratios, nats; root mean square over the mini-batches."""
    discarded: float
    """Mean of `measured_share`."""
    tail: float | None
    """Mean of the metric `TAIL`, if it was logged."""


def off_policy(unit: str, lines: Iterable[Mapping[str, float | None]]) -> OffPolicy | None:
    """Pools the metrics of off-policy mini-batches; None without a hard clip, an advantage or a spread."""
    lines = list(lines)
    stds = [std for line in lines if (std := line.get(f"ratio/{SHORT[unit]}_log_std")) is not None]
    shares = [share for line in lines if (share := measured_share(unit, line)) is not None]
    tails = [tail for line in lines if (tail := line.get(TAIL)) is not None]
    if not shares or not any(stds):
        return None
    return OffPolicy(
        sqrt(sum(std * std for std in stds) / len(stds)),
        sum(shares) / len(shares),
        sum(tails) / len(tails) if tails else None,
    )


def own_keys(algo: Mapping[str, object], low: float, high: float) -> dict[str, float]:
    """A range as the keys of `[algo]` in which an algorithm takes it: GMPO's bounds are nats."""
    if "log_clip_low" in algo:
        return {"log_clip_low": -log1p(-low), "log_clip_high": log1p(high)}
    return {"clip.low": low, "clip.high": high}


def share_discarded(low: float, high: float, log_std: float) -> float:
    """Q(|log(1 - low)| / sd) / 2 + Q(log(1 + high) / sd) / 2, Q = the normal upper tail, of what has an advantage: half
    of these are positive, and only the side that acts on them counts. Never above one half."""
    if log_std <= 0:
        return 0.0
    return float(ndtr(log1p(-low) / log_std) + ndtr(-log1p(high) / log_std)) / 2


def range_for(share: float, log_std: float) -> tuple[float, float]:
    """The range (low, high) that discards a share below one half, as far from 1 on both sides in log space: z standard
    deviations, z = the normal quantile."""
    assert 0 < share < 0.5
    edge = -log_std * float(ndtri(share))
    return -expm1(-edge), expm1(edge)


def scaled_range(length: float) -> float:
    """GSPO's published lower range at another length: 3e-4 sqrt(10,000 / L)  (arXiv 2509.09177)."""
    return PAPER_RANGE * sqrt(PAPER_LENGTH / length)
