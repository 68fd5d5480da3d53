"""From the numbers of one comparison to its verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Code = Literal[
    "refused", "two_checkpoints", "no_claim", "inconclusive", "suggestive", "suggestive_equal", "better", "different",
    "equal",
]  # fmt: skip
"""`different` stands for `better` where a metric has no good direction."""
Interval = tuple[float, float]

ALPHA = 0.05
FEWEST = 6
"""Seeds below which the exact test cannot reach 5 % (2 / 2^5 = 0.0625)."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a verdict depends on. Differences are treatment minus baseline, in the metric's own unit."""

    n: int
    """Pairs of runs."""
    effect: float
    flat: bool = False
    """Whether all seed differences are equal, so that there is no interval and no p."""
    ci: Interval | None = None
    """95 %, paired t over seeds."""
    ci90: Interval | None = None
    p_t: float | None = None
    """Of the paired t test; adjusted by Holm where the comparison is not the primary one."""
    p_exact: float | None = None
    p_equal: float | None = None
    """Of the two one-sided tests against the margin; None without a margin."""
    new_problems: Interval | None = None
    """95 %, two-way clustered; with one seed over problems."""
    margin: float | None = None
    mde: float | None = None
    """The difference that so many seeds find with 80 % power."""
    seeds_needed: int | None = None
    """To find the margin with that power; None = more than can be counted."""


def judge(evidence: Evidence, better: str) -> Code:
    """The first rule that fits, from few seeds to many; `better` is the metric's good direction.

    The verdict `better` takes the t test and the exact test, so that it falls on at most 5 % of the studies without
    any difference; fewer than `FEWEST` seeds never reach it.
    """
    e = evidence
    if e.n <= 2:
        return "two_checkpoints" if e.n == 1 else "no_claim"
    if e.flat or e.ci is None or e.p_t is None or e.p_exact is None:
        return "inconclusive"
    away, alike = excludes_zero(e.ci), within_margin(e)
    if e.n < FEWEST:
        return "suggestive" if away else "suggestive_equal" if alike else "inconclusive"
    if max(e.p_t, e.p_exact) <= ALPHA:
        return "different" if better == "neither" else "better"
    if alike:
        return "equal"
    return "suggestive" if away and e.p_exact > ALPHA else "inconclusive"


def excludes_zero(ends: Interval | None) -> bool:
    """Whether an interval lies on one side of 0."""
    return ends is not None and not ends[0] <= 0 <= ends[1]


def within_margin(evidence: Evidence) -> bool:
    """Whether equality within the margin is shown; a difference that is not significant does not show it."""
    return evidence.p_equal is not None and evidence.p_equal < ALPHA
