"""Say once, early in a run, when the clip range does not fit the ratios that it meets, and which range would."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gspo_cli.stats.clip_share import SCALED, TOO_MUCH, dual_clip_advice, off_policy, own_keys, range_for, scaled_range
from gspo_cli.types import StepMetrics

PROPOSED = 0.15
"""Share that the proposed range would discard."""
GSPO = {"name": "gspo"}


@dataclass(frozen=True, slots=True)
class ClipAdvice:
    """A clip range against the off-policy mini-batches of one rollout batch, as the event `clip_range` holds it."""

    unit: str
    """What the clip acts on: `token` or `sequence`."""
    log_std: float
    """Standard deviation of the log-ratios, nats; root mean square over the mini-batches."""
    discarded: float
    """Share of the responses or tokens with an advantage that lose their gradient by the clip, measured."""
    length: float
    """Mean length of the responses, tokens."""
    proposed: tuple[float, float]
    """The range that would discard `PROPOSED`, if log-ratios were normal and unrelated to the advantage's sign."""
    keys: dict[str, float]
    """The same as keys of `[algo]`."""
    scaled_by_length: float | None
    """GSPO's published range scaled to the length at hand; None for other algorithms."""
    dual_clip: str | None = None
    """What to do about heavy ratios on negative advantages, if there are any."""

    def sentence(self) -> str | None:
        """A warning where the range discards too much, or leaves too much alone; None where it does neither."""
        return "; ".join(filter(None, (self._too_narrow(), self.dual_clip))) or None

    def _too_narrow(self) -> str | None:
        if self.discarded <= TOO_MUCH:
            return None
        what = "responses" if self.unit == "sequence" else "tokens"
        scaled = ""
        if self.scaled_by_length is not None:
            scaled = f"; the published 3e-4, scaled to {self.length:.0f} tokens, is {self.scaled_by_length:.2g}"
        return (
            f"the clip range discards {self.discarded:.0%} of the {what} with an advantage in off-policy mini-batches; "
            f"{' / '.join(self.keys)} = {' / '.join(f'{value:.2g}' for value in self.keys.values())} would discard "
            f"{PROPOSED:.0%}{scaled} (`gspo report clip` has more)"
        )


def clip_advice(
    updates: Sequence[StepMetrics], unit: str, length: float, algo: Mapping[str, Any] = GSPO
) -> ClipAdvice | None:
    """From the `update` lines of a rollout batch, its mean response length in tokens, and the arm's `[algo]`.

    None without a hard clip, and without a mini-batch after the first, as ratios are 1 there.
    """
    met = off_policy(unit, (line.values for line in updates[1:]))
    if met is None:
        return None
    low, high = range_for(PROPOSED, met.log_std)
    scaled = scaled_range(length) if unit == "sequence" and algo["name"] in SCALED else None
    dual_clip = dual_clip_advice(met.tail, algo)
    keys = own_keys(algo, low, high)
    return ClipAdvice(unit, met.log_std, met.discarded, length, (low, high), keys, scaled, dual_clip)
