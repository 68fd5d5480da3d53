"""What an algorithm file provides, and what its loss returns.

B = responses, T = token positions
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from gspo_cli.types import Reduced


@dataclass(frozen=True, slots=True)
class Clip:
    """A clip range: ratios inside [1 - low, 1 + high] keep their gradient."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < 1:
            raise ValueError("clip.low must lie between 0 and 1 (it is subtracted from 1)")
        if self.high <= 0:
            raise ValueError("clip.high must be positive (it is added to 1)")


@dataclass(frozen=True, slots=True)
class LossOutput:
    """One micro-batch's share of the loss of a mini-batch.

    The step divides the sum of the numerators by the denominator of the whole mini-batch, so the gradient does not
    depend on how the mini-batch was cut.
    """

    loss_numerator: Tensor
    """Sum over this micro-batch of -J's terms; a scalar with gradient."""
    denominator: Tensor
    """This micro-batch's share of the count that J divides by; a scalar without gradient."""
    gradient_weight_BT: Tensor
    """denominator * dJ/dl for each token in closed form, detached; 0 outside the mask."""
    clipped_BT: Tensor | None
    """True where the clip makes a loss token's gradient exactly 0; None where the algorithm has no hard clip."""
    metrics: dict[str, Reduced] = field(default_factory=dict)
    """What only this algorithm can measure, by metric name."""


class Algorithm(Protocol):
    """The seam: a module with these four names."""

    Params: type[Any]

    def advantage(self, rewards_B: Tensor, groups_B: Tensor, params: Any) -> Tensor:
        """Advantages [B] of the responses of one rollout batch, before it is split."""

    def denominator(self, mask_BT: Tensor, params: Any) -> Tensor:
        """The count that J divides by, from masks alone, so that it is known before the first backward."""

    def loss(
        self, log_probs_BT: Tensor, old_log_probs_BT: Tensor, advantages: Tensor, mask_BT: Tensor, params: Any
    ) -> LossOutput:
        """-J of one micro-batch; `advantages` is [B] or [B, T]."""
