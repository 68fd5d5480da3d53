"""The rule for a collapsed reward, shared by training and reports.

A run has collapsed if the mean reward of its last tenth lies far below that of its best tenth: by at least

- `below` standard deviations of the rewards of single responses,
- `least` in the reward's own unit, and
- `noise` standard errors, which follow from the spread within the batches.

All three are differences, so a reward that is shifted by a constant collapses at the same step.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite

from gspo_cli.config import CollapseRule

ROUNDING = 1e-9
"""Differences between long sums up to this size are rounding errors."""


def collapse_window(planned: int) -> int:
    """The number of rollout batches in the last tenth of the plan: those above 0.9 x planned."""
    return planned - 9 * planned // 10


@dataclass(frozen=True, slots=True)
class BatchReward:
    """The rewards of one rollout batch."""

    mean: float
    std: float | None = None
    """Standard deviation over responses; None = not known."""
    error: float | None = None
    """Standard error of `mean`, from `batch_error`; None = not known."""


def batch_reward(
    mean: float, std: float | None, group_std: float | None, prompts: int | None, samples: int | None
) -> BatchReward:
    """One batch from its logged `reward/mean`, `reward/std` and `reward/group_std`, and the size of a batch.

    A spread that is missing or not finite is not known.
    """
    std, group_std = (value if value is not None and isfinite(value) else None for value in (std, group_std))
    if std is None or group_std is None or not prompts or not samples:
        return BatchReward(mean, std)
    return BatchReward(mean, std, batch_error(std, group_std, prompts, samples))


def batch_error(std: float, group_std: float, prompts: int, samples: int) -> float:
    """The standard error of a batch's mean reward, where `samples` responses share each of `prompts` prompts.

    error^2 = (B + W / samples) / prompts,  W = group_std^2 within prompts,  B = std^2 - W between them

    The mean of the groups' standard deviations is at most the root of their mean variance. So B is rather too large,
    and the rule rather too careful.
    """
    within = group_std**2
    return float(((max(0.0, std**2 - within) + within / samples) / prompts) ** 0.5)


@dataclass
class RewardHistory:
    """Follows the mean reward of a run, batch by batch; each step takes the same time however long the run is."""

    window: int
    """Rollout batches in a tenth of the plan."""
    rule: CollapseRule = field(default_factory=CollapseRule)
    sums: list[float] = field(default_factory=lambda: [0.0])
    """Running sums of the rewards, from 0."""
    stds: list[float] = field(default_factory=lambda: [0.0])
    """The same of the standard deviations, of the batches where they are known."""
    squares: float = 0.0
    """Sum of the squared standard errors, where they are known."""
    num_errors: int = 0
    best: float = -float("inf")
    """The largest mean of a window."""
    scale: float = 0.0
    """The largest mean standard deviation of a window."""

    def __post_init__(self) -> None:
        assert self.window >= 1, self.window

    def add(self, batch: BatchReward) -> bool:
        """Takes in the next batch, and returns whether the run has collapsed by now.

        False before a whole window is over, and as long as no batch has a known spread.
        """
        self.sums.append(self.sums[-1] + batch.mean)
        if batch.std is not None:
            self.stds.append(self.stds[-1] + batch.std)
            first = max(0, len(self.stds) - 1 - self.window)
            self.scale = max(self.scale, (self.stds[-1] - self.stds[first]) / (len(self.stds) - 1 - first))
        if batch.error is not None:
            self.squares, self.num_errors = self.squares + batch.error**2, self.num_errors + 1
        if len(self.sums) <= self.window:
            return False
        self.best = max(self.best, self.last)
        if self.scale == 0 or not self.num_errors:
            return False
        noise = (2 * self.squares / self.num_errors / self.window) ** 0.5
        least = max(self.rule.below * self.scale, self.rule.least, self.rule.noise * noise)
        return self.best - self.last >= least - ROUNDING and self.best - self.last > ROUNDING

    @property
    def last(self) -> float:
        """The mean reward of the last window."""
        return (self.sums[-1] - self.sums[-1 - self.window]) / self.window


def has_collapsed(batches: Iterable[BatchReward], window: int, rule: CollapseRule | None = None) -> bool:
    """Whether a run with these rollout batches ended as a collapsed one; `window` from `collapse_window`."""
    history, collapsed = RewardHistory(window, rule or CollapseRule()), False
    for batch in batches:
        collapsed = history.add(batch)
    return collapsed
