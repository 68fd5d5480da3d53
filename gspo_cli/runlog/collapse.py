"""When a run has collapsed: the reward rule, one for training and reports alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

ROUNDING = 1e-9
"""Differences of long sums that are no differences."""


def window_of(planned: int) -> int:
    """The rollout batches of a tenth of the plan: those above 0.9 x planned."""
    return planned - 9 * planned // 10


def has_collapsed(rewards: Sequence[float], window: int, below: float = 0.5, least: float = 0.1) -> bool:
    """Whether the reward of the last `window` batches lies far under the best that as many batches in a row had.

    collapsed  <=>  last < below * best  and  best - last >= least,  both means over `window` batches

    `rewards`: one finite mean reward a rollout batch, the first to the latest. Asked after each batch of a run in
    progress, it tells when this happened. False before `window` batches.
    """
    return list(_held(rewards, window, below, least))[-1:] == [True]


def collapsed_at(rewards: Sequence[float], window: int, below: float = 0.5, least: float = 0.1) -> int | None:
    """The first rollout batch (from 1) after which the rule held; None if it never did."""
    return next((window + index for index, held in enumerate(_held(rewards, window, below, least)) if held), None)


def _held(rewards: Sequence[float], window: int, below: float, least: float) -> Iterator[bool]:
    """The rule's answer after each batch from the `window`-th on."""
    assert window >= 1, window
    sums, best = list(accumulate(rewards, initial=0.0)), float("-inf")
    for end in range(window, len(sums)):
        last = (sums[end] - sums[end - window]) / window
        best = max(best, last)
        yield last < below * best - ROUNDING and best - last >= least - ROUNDING
