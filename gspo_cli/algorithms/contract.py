"""The names that an algorithm module provides, and what its loss returns.

B = responses, T = token positions
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import log1p
from typing import Any, Literal, Protocol

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

    @property
    def log_bounds(self) -> tuple[float, float]:
        """The bounds of the log-ratio."""
        return log1p(-self.low), log1p(self.high)


@dataclass(frozen=True, slots=True)
class LossOutput:
    """One micro-batch's share of a mini-batch's loss.

    The step divides the sum of the numerators by the denominator of the whole mini-batch, so the gradient does not
    depend on how the mini-batch was split.
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
    """Metrics that only this algorithm can measure, by name."""


NEEDED = ("Params", "UNIT", "REDUCTION", "token_terms", "advantage", "denominator", "loss")
"""The names that an algorithm module must have."""


class Algorithm(Protocol):
    """The seam: a module with these names.

    Optional names:
    - `PRESET`: general `[algo]` keys that the published setting switches on.
    - `CRITIC = True`: a critic gives the advantages; `token_advantages` replaces `advantage` (see `ppo.py`).
    - `NEEDS_SAMPLER = True`: the loss weighs against the sampler's log-probabilities itself (see `minirl.py`).
    - `HAS_RATIO = False`: no importance ratio corrects for stale data (see `reinforce.py`).
    - `ONE_ADVANTAGE = True`: a response is weighed as a whole, so its tokens cannot have advantages of their own.
    - `run_defaults(recipe)`: `[algo]` keys that a run fills in where its recipe leaves them out (see `dr_grpo.py`).
    - `check(recipe, params)`: raises GspoError for a recipe that the algorithm cannot train with (see `reinforce.py`).
      Its `recipe` is that of one arm, with `[algo]` complete.
    """

    Params: type[Any]
    UNIT: Literal["token", "sequence"]
    """What has its own importance ratio; a sampler correction uses the same unit."""

    REDUCTION: str
    """The name of its mean over tokens and responses."""

    @property
    def token_terms(self) -> Callable[[Tensor, Tensor], Tensor]:
        """How per-token terms [B, T] become a numerator under this algorithm's reduction; the KL penalty uses it."""

    def advantage(self, rewards_B: Tensor, groups_B: Tensor, params: Any) -> Tensor:
        """Advantages [B] of the responses of one rollout batch, before it is split."""

    def denominator(self, mask_BT: Tensor, params: Any) -> Tensor:
        """The count that J divides by, from masks alone: it must be known before the first backward pass."""

    def loss(
        self,
        log_probs_BT: Tensor,
        old_log_probs_BT: Tensor,
        advantages: Tensor,
        mask_BT: Tensor,
        params: Any,
        *,
        sampler_log_probs_BT: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> LossOutput:
        """-J of one micro-batch.

        `advantages` is [B] or [B, T]; `sampler_log_probs_BT` the engine's log-probabilities; `weights` a detached
        sampler correction, [B] or [B, T], multiplied onto the terms and never counted in the denominator.
        """
