"""The data that flows through a run: Problem -> Sample -> Group -> RolloutBatch -> MiniBatch, and its metrics.

B = responses, T = token positions, L = MoE layers, K = experts per token
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from gspo_cli.models.packing import Packing

    RoutesArray = NDArray[np.uint8] | NDArray[np.int16]

FinishReason = Literal["stop", "length", "abort", "stop_string"]
"""`stop`: an end-of-sequence token; `stop_string`: one of `rollout.stop`; `length`: the length limit."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its reference answer."""

    id: str
    """Unique in its data set; part of the keys of samples and seeds."""
    prompt: str
    """The model's input, as text."""
    answer: str
    """The reference that a reward compares the response with."""
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The row of one's own data, which rewards get by name."""
    messages: tuple[Mapping[str, str], ...] = field(default=(), compare=False, repr=False)
    """The prompt as messages of a chat, each with `role` and `content`; empty for a prompt that is one text."""


def visible(text: str) -> str | None:
    """What counts of a response: what follows its last `</think>`; None while a thinking part is open."""
    _, closed, shown = text.rpartition("</think>")
    if "<think>" in shown:
        return None
    return shown.lstrip() if closed else shown


class Response(str):
    """The text of a response, as rewards get it: a string that also knows how the response ended."""

    num_tokens: int
    """Its length in tokens, EOS included."""
    finish: FinishReason

    def __new__(cls, text: str, num_tokens: int = 0, finish: FinishReason = "stop") -> Response:
        made = super().__new__(cls, text)
        made.num_tokens, made.finish = num_tokens, finish
        return made


@dataclass(frozen=True, slots=True)
class Score:
    """A reward function's verdict on one response."""

    value: float | None
    """The reward; None if the grader failed: an unscored response is left out, not counted as wrong."""
    reason: str
    """One or two words: `correct`, `wrong`, `no_answer`, ..."""
    parts: tuple[tuple[str, float | None], ...] = ()
    """With several rewards: the label and value of each, before weighting."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A problem's prompt as token ids."""

    problem_id: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. Training uses only temperature and length: anything that truncates the distribution (top-p, top-k,
    min-p) would make every importance ratio wrong. Evaluation may truncate it."""

    temperature: float
    """0 is greedy (evaluation only)."""
    max_new_tokens: int
    """Longest response in tokens, EOS included."""
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
    """Position in the group; (problem_id, index) is the sample's key."""
    seed: int
    token_ids: tuple[int, ...]
    """The response's tokens, including EOS if it was drawn; never re-tokenised text."""
    log_probs: tuple[float, ...]
    """Log-probability in nats of each drawn token under the distribution it was drawn from (temperature applied)."""
    finish: FinishReason
    weight_version: int
    """Rollout batches that the weights which drew this sample were trained on."""
    routes_TLK: RoutesArray | None = field(default=None, compare=False, repr=False)
    """The experts that the engine chose for every token of prompt and response except the last, which was never
    forwarded: uint8 up to 256 experts, else int16. None if the engine did not record them."""


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one prompt with their scores."""

    problem: Problem
    prompt: Prompt
    samples: tuple[Sample, ...]
    texts: tuple[str, ...]
    """The decoded responses, for scoring and reading; training never uses them."""
    scores: tuple[Score, ...]
    credits: tuple[tuple[float, ...], ...] | None = None
    """A factor for the advantage of each response token, from a task that assigns credit; None = all 1."""


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The groups sampled for one round of updates, all with one version of the weights."""

    step: int
    """Number of the rollout batch, from 1."""
    groups: tuple[Group, ...]
    max_new_tokens: int
    """The length limit of its responses."""
    dropped: tuple[Group, ...] = ()
    """Groups without spread that dynamic sampling set aside; they still count as sampled."""

    @property
    def lags(self) -> list[int]:
        """For each response, the rollout batches that the policy was trained on since it was drawn."""
        return [self.step - 1 - sample.weight_version for group in self.groups for sample in group.samples]


@dataclass(slots=True)
class RouteNoise:
    """The router noise of a micro-batch."""

    share: float
    """Of expert slots that the old policy fills differently."""
    key: int
    """Of the noise; the same for all arms of a study."""
    measured: LayerMeans | None = None
    """The share that it came to; None until the old policy is recorded."""


@dataclass(slots=True)
class MicroBatch:
    """The rows of one forward and backward pass, padded on the right to the longest."""

    input_ids_BT: Tensor
    """Prompt, then response, then padding; int64."""
    mask_BT: Tensor
    """True where a position is a loss token (the response, its EOS included)."""
    advantages: Tensor
    """[B], or [B, T] where advantages differ between tokens; float32."""
    sampler_log_probs_BT: Tensor
    """The engine's log-probability of each loss token, 0 elsewhere; float32."""
    positions_N: Tensor
    """Which of the tokens fed to the model are not the last of a row, so that their experts count; int64, ascending."""
    predicts_M: Tensor
    """Which of the N predicts each loss token; int64."""
    loss_M: Tensor
    """Where the flattened mask is True; int64, ascending. Known from the start, so that no pass waits for a count."""
    groups_B: Tensor
    """Number of each row's prompt in the rollout batch; int64."""
    packing: Packing | None = None
    """The packed form in which the rows are fed to the model; None = padded."""
    trainer_log_probs_BT: Tensor | None = None
    """The trainer's, before the first update on the rollout batch; None until computed."""
    old_log_probs_BT: Tensor | None = None
    """The denominator of the ratios, from trainer or engine; None until known."""
    ref_log_probs_BT: Tensor | None = None
    """The reference policy's; None without a KL penalty."""
    old_values_BT: Tensor | None = None
    """The critic's values before the first update; None without a critic."""
    returns_BT: Tensor | None = None
    """The critic's targets; None without a critic."""
    sampler_routes_LNK: Tensor | None = None
    """The engine's expert choices at the N positions; None where not needed."""
    old_routes_LNK: Tensor | None = None
    """The trainer's before the first update; None until computed."""
    noise_BT: Tensor | None = None
    """Synthetic noise that the old policy's log-probabilities get; None = none."""
    route_noise: RouteNoise | None = None
    """Synthetic noise that the old policy's expert choices get; None = none."""
    filler: bool = False
    """Exists only because other ranks have more passes and all must gather weights together; contributes nothing."""


@dataclass(slots=True)
class MiniBatch:
    """The rows of one optimizer step: whole groups of the rollout batch."""

    micro_batches: list[MicroBatch]
    """Without the rows whose advantage, and so gradient, is 0."""
    mask_BT: Tensor
    """The loss tokens of all responses, skipped ones included, for denominators."""
    num_skipped: int
    """Rows left out of the micro-batches, over all ranks."""
    skipped_tokens: int = 0
    """Loss tokens in those rows."""

    @property
    def own(self) -> list[MicroBatch]:
        """The micro-batches that this rank trains on."""
        return [micro for micro in self.micro_batches if not micro.filler]


class Mean(NamedTuple):
    """A mean that stays exact over micro-batches, ranks and mini-batches, because it is divided once, at the end."""

    numerator: Tensor
    denominator: Tensor | int


class RootMean(NamedTuple):
    """The root of a mean, such as a root mean square."""

    numerator: Tensor
    denominator: Tensor | int


class Extreme(NamedTuple):
    """The largest (sign = 1) or smallest (sign = -1) of some numbers."""

    value: Tensor
    sign: int

    def merge(self, other: Extreme) -> Extreme:
        return Extreme(self.sign * (self.sign * self.value).maximum(self.sign * other.value), self.sign)


class Spread(NamedTuple):
    """Count, mean and sum of squared deviations of some numbers, in float64."""

    num: Tensor
    mean: Tensor
    squares: Tensor

    def merge(self, other: Spread) -> Spread:
        """Chan, Golub and LeVeque 1979: no digits are lost where the mean is large."""
        num = self.num + other.num
        gap, share = other.mean - self.mean, other.num / num.clamp(min=1)
        return Spread(num, self.mean + gap * share, self.squares + other.squares + gap * gap * self.num * share)


class Kish(NamedTuple):
    """Effective share of some weights, (sum x)^2 / (n sum x^2) (Kish 1965, §11.7): 1 = all equal."""

    total: Tensor
    squares: Tensor
    num: Tensor


class Tail(NamedTuple):
    """The largest of some log-ratios, from which Pareto k is fitted once, at the end: exact over any split."""

    largest: tuple[Tensor, ...]
    """Those of each micro-batch: together they hold the largest of all."""
    num: Tensor | int
    """Of all, kept or not."""


class LayerMeans(NamedTuple):
    """A mean for each MoE layer, with the same denominator in each."""

    numerator_L: Tensor
    denominator: Tensor | int
    """Of a single layer."""

    def total(self) -> Mean:
        return Mean(self.numerator_L.sum(), self.denominator * len(self.numerator_L))

    def layers(self) -> list[Mean]:
        return [Mean(numerator, self.denominator) for numerator in self.numerator_L]


class Total(NamedTuple):
    """A sum."""

    value: Tensor


class Loads(NamedTuple):
    """How often each expert of each layer was chosen: [L, E]. Loads can be added; their imbalance cannot."""

    load_LE: Tensor

    def violation(self) -> LayerMeans:
        """(largest - mean load) / mean load, per layer."""
        mean_L = self.load_LE.mean(-1)
        return LayerMeans((self.load_LE.amax(-1) - mean_L) / mean_L.clamp(min=1e-9), 1)


Reduced = Mean | RootMean | Extreme | Spread | Kish | Tail | LayerMeans | Total | Loads


@dataclass(slots=True)
class StepMetrics:
    """The values of one log line, with their denominators."""

    values: dict[str, float | None] = field(default_factory=dict)
    """None = the metric does not apply here; non-finite values are kept."""
    counts: dict[str, int] = field(default_factory=dict)
    """The denominator of each ratio."""

    def update(self, other: StepMetrics) -> None:
        self.values.update(other.values)
        self.counts.update(other.counts)
