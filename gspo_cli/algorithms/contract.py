"""What an algorithm's loss reads and returns, and the names that an algorithm provides.

B = responses, T = token positions
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

from torch import Tensor

from gspo_cli.types import Reduced


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One micro-batch. Log-probabilities are in nats, float32 or better; outside the mask anything may stand."""

    log_probs_BT: Tensor
    """The policy's now, with the gradient."""
    old_log_probs_BT: Tensor
    """The old policy's: the denominator of the importance ratios."""
    advantages: Tensor
    """[B], or [B, T] where they differ between the tokens of a response."""
    mask_BT: Tensor
    """True for loss tokens; bool."""
    groups_B: Tensor | None = None
    """A number for the prompt of each response; int64. A group is whole only if the algorithm asks for that
    (`WHOLE_GROUPS`). None where another trainer does not say."""
    sampler_log_probs_BT: Tensor | None = None
    """The engine's, as it drew the tokens."""
    weights: Tensor | None = None
    """A detached sampler correction, [B] or [B, T], multiplied onto the terms and never counted in the denominator."""
    ref_log_probs_BT: Tensor | None = None
    """The reference policy's; None without a KL penalty, which the step adds itself."""


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
    """Metrics that only this algorithm can measure, by names of the schema (`runlog/metrics.toml`)."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What tables say of an algorithm; what is left empty follows from its other names (see `overview.py`)."""

    ratio: str = ""
    """Its importance ratio."""
    positive: str = ""
    negative: str = ""
    """What bounds it where A > 0, and where A < 0."""
    advantage: str = "(r - mean) / std"
    default_of: str = ""
    """Frameworks that train with it unless told otherwise, and what differs there (August 2026)."""


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """An algorithm: the names of its module, those that it may leave out with their defaults."""

    Params: type[Any]
    """Its settings, a frozen dataclass whose defaults are the published ones."""
    UNIT: Literal["token", "sequence"]
    """What has its own importance ratio; a sampler correction uses the same unit."""
    REDUCTION: str
    """The name of its mean over tokens and responses."""
    token_terms: Callable[[Tensor, Tensor], Tensor]
    """(terms_BT, mask_BT) -> a numerator under its reduction; the KL penalty uses it."""
    advantage: Callable[[Tensor, Tensor, Any], Tensor]
    """(rewards_B, groups_B, params) -> advantages [B] of one rollout batch, before it is split."""
    denominator: Callable[[Tensor, Any], Tensor]
    """(mask_BT, params) -> the count that J divides by, from masks alone: it is needed before the first backward."""
    loss: Callable[[LossInputs, Any], LossOutput]
    """(inputs, params) -> -J of one micro-batch."""
    PRESET: Mapping[str, Any] = field(default_factory=dict)
    """General `[algo]` keys that the published setting switches on."""
    SUMMARY: Summary = Summary()
    """What tables say of it beyond the names here."""
    CLIP_UNIT: Literal["token", "sequence"] | None = None
    """What its clip acts on, where that is not `UNIT` (see `gmpo.py`)."""
    HAS_RATIO: bool = True
    """False: no importance ratio corrects for stale data (see `reinforce.py`)."""
    NEEDS_SAMPLER: bool = False
    """The loss weighs against the sampler's log-probabilities itself (see `minirl.py`)."""
    ONE_ADVANTAGE: bool = False
    """A response is weighed as a whole, so its tokens cannot have advantages of their own."""
    WHOLE_GROUPS: bool = False
    """The loss compares responses of a group: a micro-batch holds all of a prompt's or none."""
    EVERY_ROW: bool = False
    """The loss has a term without an advantage: responses whose advantage is 0 are trained on, too (see `ipo.py`)."""
    WHITEN: bool = False
    """A run standardizes the advantages over the loss tokens of each rollout batch (see `reinforce_pp.py`)."""
    token_advantages: Callable[[Tensor, Tensor, Tensor, Any], tuple[Tensor, Tensor]] | None = None
    """With it a critic is trained, and gives the advantages in place of `advantage` (see `ppo.py`)."""
    run_defaults: Callable[[Any], dict[str, Any]] = lambda _: {}
    """(recipe) -> `[algo]` keys that a run fills in where its recipe leaves them out (see `dr_grpo.py`)."""
    check: Callable[[Any, Any], None] = lambda *_: None
    """(recipe, params): raises GspoError for an arm's recipe that it cannot train with (see `reinforce.py`)."""

    @classmethod
    def of(cls, module: Any) -> AlgorithmSpec:
        """The algorithm of a module, or of anything else with these names."""
        return cls(**{f.name: getattr(module, f.name) for f in fields(cls) if hasattr(module, f.name)})

    @property
    def clip_unit(self) -> str:
        """What its clip acts on: `token` or `sequence`."""
        return self.CLIP_UNIT or self.UNIT


NEEDED = tuple(f.name for f in fields(AlgorithmSpec) if f.default is MISSING and f.default_factory is MISSING)
"""The names that an algorithm must have."""


def loss_from_tensors(
    algorithm: Any,
    log_probs_BT: Tensor,
    old_log_probs_BT: Tensor,
    advantages: Tensor,
    mask_BT: Tensor,
    params: Any,
    **more: Tensor | None,
) -> LossOutput:
    """The loss of an algorithm for another trainer: its tensors one by one, further fields of `LossInputs` by name."""
    output: LossOutput = algorithm.loss(LossInputs(log_probs_BT, old_log_probs_BT, advantages, mask_BT, **more), params)
    return output
