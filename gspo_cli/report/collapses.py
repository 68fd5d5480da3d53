"""Which runs of two arms collapsed, and the test of whether one arm's do so more often."""

from __future__ import annotations

from dataclasses import dataclass

from gspo_cli.config import CollapseRule
from gspo_cli.report.pairs import Member, Pair
from gspo_cli.report.run_curves import REWARD
from gspo_cli.report.stats_pairs import mcnemar
from gspo_cli.runlog.collapse import has_collapsed, window_of


@dataclass(frozen=True, slots=True)
class Collapses:
    """Collapsed runs of a pair of arms."""

    baseline: list[int]
    """Their seeds."""
    treatment: list[int]
    p: float
    """Exact McNemar test over the seeds where one arm alone collapsed."""


def collapses(pair: Pair, rule: CollapseRule) -> Collapses:
    """Counts the collapsed runs among the paired seeds."""
    left, right = ([s for s in pair.seeds if collapsed(side[s], rule)] for side in (pair.left, pair.right))
    only_left, only_right = len(set(left) - set(right)), len(set(right) - set(left))
    return Collapses(left, right, mcnemar(only_left, only_right))


def collapsed(member: Member, rule: CollapseRule) -> bool:
    """Whether training stopped on values that are not finite, or the reward fell by the rule."""
    if member.facts.not_finite:
        return True
    rewards = [] if member.curves is None else member.curves.values[REWARD].tolist()
    return has_collapsed(rewards, window_of(member.facts.planned), rule.below, rule.least)
