"""What the oracle reads and what it answers: lists of floats, loss tokens only.

i = response, t = token position
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

Grid = list[list[float]]
SATURATION = 20.0


@dataclass(frozen=True)
class Batch:
    """One micro-batch. Positions outside the mask may hold anything, NaN included; no function here reads them."""

    log_probs: Grid
    """l: log-probability of each token under the policy now."""
    old: Grid
    """o: under the policy before the first update."""
    sampler: Grid
    """m: as the sampler saw it."""
    advantages: Grid | list[float]
    """A_it, or one A_i per response."""
    mask: list[list[bool]]
    """True for loss tokens."""
    weights: Grid | list[float] | None = None
    """Detached correction weights, per token or per response."""
    groups: list[int] | None = None
    """A number for the prompt of each response; None = all of one prompt."""

    def responses(self) -> Iterator[tuple[int, list[int]]]:
        """(i, positions of its loss tokens) of every response that has one."""
        for i, row in enumerate(self.mask):
            positions = [t for t, is_loss in enumerate(row) if is_loss]
            if positions:
                yield i, positions

    def advantage(self, i: int, t: int) -> float:
        """A_it."""
        return at(self.advantages, i, t)

    def weight(self, i: int, t: int) -> float:
        """The correction weight, 1 without correction."""
        return 1.0 if self.weights is None else at(self.weights, i, t)

    def log_ratio(self, i: int, t: int) -> float:
        """log w_it = l - o."""
        return self.log_probs[i][t] - self.old[i][t]

    def mean_log_ratio(self, i: int, positions: list[int]) -> float:
        """log s_i = 1/L_i sum_t (l - o)."""
        return math.fsum(self.log_ratio(i, t) for t in positions) / len(positions)


class Term(NamedTuple):
    """What one loss token contributes, before the reduction."""

    value: float
    """x_it, its summand in J."""
    slope: float
    """d x / d l_it as the algorithm backpropagates it."""
    log_ratio: float
    """The log-ratio in the algorithm's own unit."""
    clipped: bool = False
    dual: bool = False
    """Zeroed by the dual clip (and not by the clip)."""
    capped: bool = False
    gate: float = math.nan
    """SAPO's f'(w)."""


Terms = dict[tuple[int, int], Term]


@dataclass(frozen=True)
class Answer:
    """What a correct implementation returns for a batch."""

    numerator: float
    """Of -J."""
    denominator: float
    weight: Grid
    """denominator * dJ/dl; 0 outside the mask."""
    reduction: tuple[str, str]
    """What each term counts (`mean`: 1/L_i, `sum`: 1), and what J divides by: `N`, `T` or `N L_max`."""
    clipped: list[list[bool]] | None
    """Loss tokens whose gradient the clip makes 0, or None without a hard clip."""
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)
    """(numerator, denominator) by metric name."""


def at(values: Grid | list[float], i: int, t: int) -> float:
    """Entry (i, t) of a grid; of one number a response, the response's."""
    row = values[i]
    return row[t] if isinstance(row, list) else row


def saturated(log_ratio: float) -> bool:
    """Whether the log-ratio counts as the constant +-20."""
    return abs(log_ratio) > SATURATION


def ratio(log_ratio: float) -> float:
    """exp of the saturated log-ratio."""
    return math.exp(max(-SATURATION, min(SATURATION, log_ratio)))


def reduced(
    batch: Batch, terms: Terms, share: str, denominator: str, max_length: int = 1
) -> tuple[float, float, Grid, tuple[str, str]]:
    """(numerator of -J, denominator, gradient weights, reduction) of an `Answer`."""
    lengths = {i: len(positions) for i, positions in batch.responses()}
    summands = []
    weight = [[0.0] * len(row) for row in batch.mask]
    for (i, t), term in terms.items():
        factor = batch.weight(i, t) * (1 / lengths[i] if share == "mean" else 1.0)
        summands.append(-term.value * factor)
        weight[i][t] = term.slope * factor
    counts = {"N": len(lengths), "T": sum(lengths.values()), "N L_max": len(lengths) * max_length}
    return math.fsum(summands), counts[denominator], weight, (share, denominator)
