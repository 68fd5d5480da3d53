"""The per-seed numbers of claims that no `report.metric` expresses: clip ratios over arms, and expert churn.

S = seeds
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gspo_cli.report.claim_arms import Members, arms_by_range
from gspo_cli.report.claim_list import Claim
from gspo_cli.report.pairs import Member, Pair

Array = np.ndarray[Any, Any]

CLIP, CHURN = "clip/token_frac", "moe/slot_churn_step"
FEWEST_CLIPPED = 100
"""Clipped tokens of the baseline over all runs below which their number is noise."""


def clipped(member: Member) -> tuple[float, float]:
    """(clipped tokens, all trained tokens) of a run, over its whole length."""
    assert member.curves is not None
    shares, counts = member.curves.values[CLIP], member.curves.counts[CLIP]
    return float((shares * counts).sum()), float(counts.sum())


def log_clip(member: Member) -> float:
    """log10 of the run's clip fraction; finite without a single clipped token."""
    hit, of = clipped(member)
    return float(np.log10((hit + 0.5) / (of + 1)))


def clip_ratio(pair: Pair) -> tuple[Array, Array]:
    """log10 clip fractions of both arms, each [S]; their difference is the ratio's logarithm."""
    left, right = ([log_clip(side[seed]) for seed in pair.seeds] for side in (pair.left, pair.right))
    return np.array(left), np.array(right)


def too_few_clipped(pair: Pair) -> bool:
    """Whether the baseline clipped so little that a ratio says nothing."""
    return sum(clipped(pair.left[seed])[0] for seed in pair.seeds) < FEWEST_CLIPPED


def range_pairs(claim: Claim, members: Members) -> tuple[Pair, Pair] | None:
    """(both algorithms at their narrowest ranges, both at their widest); None unless each has two."""
    left, right = arms_by_range(claim.baseline_plain, members), arms_by_range(claim.treatment, members)
    if len(left) < 2 or len(right) < 2:
        return None
    narrow, wide = ([list(arms.values())[at] for arms in (left, right)] for at in (0, -1))
    return (
        Pair(narrow[0], narrow[1], members[narrow[0]], members[narrow[1]]),
        Pair(wide[0], wide[1], members[wide[0]], members[wide[1]]),
    )


def mean_churn(pair: Pair) -> Array:
    """Each run's mean expert churn of one update [S]; runs without an update have none."""
    churn = [m.curves.values[CHURN] for s in pair.seeds if (m := pair.left[s]).curves]
    return np.array([values.mean() for values in churn if len(values)])
