"""Say once, early in a run, when the clip range does not fit the ratios that it meets, and which range would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from gspo_cli.stats.clip_share import TOO_MUCH, range_for, scaled_range
from gspo_cli.types import StepMetrics

PROPOSED = 0.15
"""Share that the proposed range would discard."""


@dataclass(frozen=True, slots=True)
class ClipAdvice:
    """A clip range against the off-policy mini-batches of one rollout batch."""

    unit: str
    """What has a ratio: `token` or `sequence`."""
    log_std: float
    """Standard deviation of the log-ratios, nats; root mean square over the mini-batches."""
    discarded: float
    """Share of responses or tokens without a gradient by the clip, measured."""
    low: float
    high: float
    """The range that would discard `PROPOSED`, if log-ratios were normal and unrelated to the advantage's sign."""
    by_length: float | None
    """The published range scaled to the length at hand; None for token ratios."""

    def sentence(self, length: float) -> str | None:
        """A warning where the range discards too much; None where it does not."""
        if self.discarded <= TOO_MUCH:
            return None
        what = "responses" if self.unit == "sequence" else "tokens"
        scaled = ""
        if self.by_length is not None:
            scaled = f"; the published 3e-4, scaled to {length:.0f} tokens, is {self.by_length:.2g}"
        return (
            f"the clip range discards {self.discarded:.0%} of the {what} in off-policy mini-batches; "
            f"{self.low:.2g} / {self.high:.2g} would discard {PROPOSED:.0%}{scaled} (`gspo report clip` has more)"
        )


def clip_advice(updates: Sequence[StepMetrics], unit: str, length: float) -> ClipAdvice | None:
    """From the `update` lines of a rollout batch and its mean response length in tokens.

    None without a hard clip, and without a mini-batch after the first, as ratios are 1 there.
    """
    name = "seq" if unit == "sequence" else "token"
    stds, shares = (
        [value for line in updates[1:] if (value := line.values.get(metric)) is not None]
        for metric in (f"ratio/{name}_log_std", f"clip/{name}_frac")
    )
    std = sqrt(sum(v * v for v in stds) / len(stds)) if stds else 0.0
    if not shares or std == 0:
        return None
    low, high = range_for(PROPOSED, std)
    scaled = scaled_range(length) if unit == "sequence" else None
    return ClipAdvice(unit, std, sum(shares) / len(shares), low, high, scaled)


def as_event(advice: ClipAdvice, length: float) -> dict[str, Any]:
    """What the run's events keep of it."""
    return {
        "unit": advice.unit, "log_std": advice.log_std, "discarded": advice.discarded, "length": length,
        "proposed": [advice.low, advice.high], "scaled_by_length": advice.by_length,
    }  # fmt: skip
