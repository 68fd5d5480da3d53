"""The nouns: Problem -> Sample -> Group -> RolloutBatch -> MiniBatch.

B = responses, T = token positions, L = MoE layers, K = experts per token
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from gspo_cli.models.packing import Packing

    RoutesArray = NDArray[np.uint8] | NDArray[np.int16]

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its reference answer."""

    id: str
    """Unique in its data set; keys of samples and seeds contain it."""
    prompt: str
    """What the model is given, as text."""
    answer: str
    """What a reward compares the response with."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward function says of one response."""

    value: float | None
    """The reward, or None when the grader failed: an unscored response is left out, it is not wrong."""
    reason: str
    """One or two words: `correct`, `wrong`, `no_answer`, ..."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A problem's prompt as token ids."""

    problem_id: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. Training knows temperature and length alone: anything that cuts the distribution's support
    (top-p, top-k, min-p) would make every importance ratio wrong; evaluation may cut it."""

    temperature: float
    """0 is greedy (evaluation only)."""
    max_new_tokens: int
    """Tokens a response may have, EOS included."""
    top_p: float = 1.0
    """Keep the likeliest tokens up to this mass; 1 = all."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 = all."""
    min_p: float = 0.0
    """Keep the tokens at least this likely, relative to the likeliest; 0 = all."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One response, as the engine drew it."""

    problem_id: str
    index: int
    """Which of the group's samples this is; (problem_id, index) is the sample's key."""
    seed: int
    token_ids: tuple[int, ...]
    """The response's tokens, with the EOS token if one was drawn. Never re-tokenised text."""
    log_probs: tuple[float, ...]
    """Log-probability in nats of each drawn token under the distribution it was drawn from (temperature applied)."""
    finish: FinishReason
    weight_version: int
    """The trainer's rollout batch whose weights drew this sample."""
    routes_TLK: RoutesArray | None = field(default=None, compare=False, repr=False)
    """The experts that the engine chose for every token of prompt and response but the last, which was never
    forwarded: uint8 up to 256 experts, else int16. None where the engine did not record them."""


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one prompt with their scores."""

    problem: Problem
    prompt: Prompt
    samples: tuple[Sample, ...]
    texts: tuple[str, ...]
    """The responses decoded, for scoring and reading; training never uses them."""
    scores: tuple[Score, ...]
    credits: tuple[tuple[float, ...], ...] | None = None
    """A factor on the advantage of each response token, from a task that assigns credit; None = all 1."""


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """What was sampled for one round of updates, with the weights of one version."""

    step: int
    """1-based rollout batch."""
    groups: tuple[Group, ...]
    max_new_tokens: int
    """The length limit of its responses."""
    dropped: tuple[Group, ...] = ()
    """Groups without spread that dynamic sampling put aside; they count as sampled all the same."""

    @property
    def lags(self) -> list[int]:
        """Of each response: rollout batches that the policy was trained on since its weights drew it."""
        return [self.step - 1 - sample.weight_version for group in self.groups for sample in group.samples]


@dataclass(slots=True)
class MicroBatch:
    """Rows of one forward and backward pass, padded on the right to the longest of them."""

    input_ids_BT: Tensor
    """Prompt, then response, then padding; int64."""
    mask_BT: Tensor
    """True where a position is a loss token (the response, its EOS included)."""
    advantages: Tensor
    """[B], or [B, T] where tokens have advantages of their own; float32."""
    sampler_log_probs_BT: Tensor
    """The engine's log-probability of each loss token, 0 elsewhere; float32."""
    positions_N: Tensor
    """Which of the tokens fed to the model are not a row's last: whose experts count; int64, rising."""
    predicts_M: Tensor
    """Which of these N predicts each loss token; int64."""
    packing: Packing | None = None
    """The rows as the model is fed them; None = as they are, padded."""
    trainer_log_probs_BT: Tensor | None = None
    """The trainer's, before the first update on the rollout batch; None until computed."""
    old_log_probs_BT: Tensor | None = None
    """What ratios are taken against: the trainer's or the engine's; None until known."""
    ref_log_probs_BT: Tensor | None = None
    """The reference policy's; None without a KL penalty."""
    old_values_BT: Tensor | None = None
    """The critic's values before the first update; None without a critic."""
    returns_BT: Tensor | None = None
    """What the critic learns; None without one."""
    sampler_routes_LNK: Tensor | None = None
    """The engine's expert choices there; None where they are not wanted."""
    old_routes_LNK: Tensor | None = None
    """The trainer's own before the first update; None until computed."""
    filler: bool = False
    """Only there because other ranks have more passes: gathering weights takes all of them. Adds nothing anywhere."""


@dataclass(slots=True)
class MiniBatch:
    """The rows of one optimizer step: whole groups of the rollout batch."""

    micro_batches: list[MicroBatch]
    """Rows without advantage are left out (their gradient is 0) ..."""
    mask_BT: Tensor
    """... but stay here: the loss tokens of all responses, for denominators."""
    num_skipped: int
    """Rows left out of the micro-batches, of all ranks."""
    skipped_tokens: int = 0
    """The loss tokens of these rows."""

    @property
    def own(self) -> list[MicroBatch]:
        """The micro-batches that this rank trains on."""
        return [micro for micro in self.micro_batches if not micro.filler]


class Mean(NamedTuple):
    """A mean that stays exact over micro-batches, ranks and mini-batches: divided once, at the end."""

    numerator: Tensor
    denominator: Tensor | int

    def merge(self, other: Mean) -> Mean:
        """Both together."""
        return Mean(self.numerator + other.numerator, self.denominator + other.denominator)


class RootMean(NamedTuple):
    """The root of a mean, such as a root mean square."""

    numerator: Tensor
    denominator: Tensor | int

    def merge(self, other: RootMean) -> RootMean:
        """Both together."""
        return RootMean(self.numerator + other.numerator, self.denominator + other.denominator)


class Extreme(NamedTuple):
    """The largest (sign = 1) or smallest (sign = -1) of some numbers."""

    value: Tensor
    sign: int

    def merge(self, other: Extreme) -> Extreme:
        """The more extreme of both."""
        return Extreme(self.sign * (self.sign * self.value).maximum(self.sign * other.value), self.sign)


class Spread(NamedTuple):
    """How widely some numbers are spread: their count, mean and sum of squared deviations, in float64."""

    num: Tensor
    mean: Tensor
    squares: Tensor

    def merge(self, other: Spread) -> Spread:
        """Both together (Chan, Golub and LeVeque 1979): no loss of digits where the mean is large."""
        num = self.num + other.num
        gap, share = other.mean - self.mean, other.num / num.clamp(min=1)
        return Spread(num, self.mean + gap * share, self.squares + other.squares + gap * gap * self.num * share)


class LayerMeans(NamedTuple):
    """A mean for each MoE layer, over equally many things in each."""

    numerator_L: Tensor
    denominator: Tensor | int
    """Of one layer."""

    def merge(self, other: LayerMeans) -> LayerMeans:
        """Both together."""
        return LayerMeans(self.numerator_L + other.numerator_L, self.denominator + other.denominator)

    def total(self) -> Mean:
        """Over all layers."""
        return Mean(self.numerator_L.sum(), self.denominator * len(self.numerator_L))

    def layers(self) -> list[Mean]:
        """Each layer's own."""
        return [Mean(numerator, self.denominator) for numerator in self.numerator_L]


class Total(NamedTuple):
    """A count."""

    value: Tensor

    def merge(self, other: Total) -> Total:
        """Both together."""
        return Total(self.value + other.value)


class Loads(NamedTuple):
    """How often each expert of each layer was chosen: [L, E]. Loads add up; their imbalance does not."""

    load_LE: Tensor

    def merge(self, other: Loads) -> Loads:
        """Both together."""
        return Loads(self.load_LE + other.load_LE)

    def violation(self) -> LayerMeans:
        """(largest - mean load) / mean load of each layer."""
        mean_L = self.load_LE.mean(-1)
        return LayerMeans((self.load_LE.amax(-1) - mean_L) / mean_L.clamp(min=1e-9), 1)


Reduced = Mean | RootMean | Extreme | Spread | LayerMeans | Total | Loads


@dataclass(slots=True)
class StepMetrics:
    """What one log line holds: values with their denominators."""

    values: dict[str, float | None] = field(default_factory=dict)
    """None means that the metric has no meaning here; a non-finite value is kept as it is."""
    counts: dict[str, int] = field(default_factory=dict)
    """The denominator of each ratio."""

    def update(self, other: StepMetrics) -> None:
        """Takes over another's values and counts."""
        self.values.update(other.values)
        self.counts.update(other.counts)
