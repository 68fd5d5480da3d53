"""One number per run, and everything that is computed from two arms' numbers.

S = seeds, J = problems
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd

from gspo_cli.report import stats_pairs, stats_power, stats_problems
from gspo_cli.report.judged_by import BenchNumber, CurveNumber, Number, unit_of
from gspo_cli.report.pairs import Member, Pair
from gspo_cli.report.stats_curves import apart_from, area_mean, last_mean, max_t
from gspo_cli.report.stats_pairs import PairedT, SignFlip
from gspo_cli.report.stats_problems import Noise, TwoWay
from gspo_cli.report.verdict import FEWEST

Array = np.ndarray[Any, Any]

DEFAULT_MARGIN = 2.0
"""Points, for metrics within [0, 1]; no other unit has a default."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The number of every run of a pair of arms."""

    baseline_S: Array
    treatment_S: Array
    cube: tuple[Array, Array] | None = None
    """By problem as well, both [S, J], where answers are stored."""
    k: int | None = None
    """Samples a problem of an avg@k."""
    points: bool = False
    """Whether all lie within [0, 1], so that differences are told in points."""
    contests_J: Array | None = None
    """The problems' contests, where they come from contests."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the tests say about the differences, treatment minus baseline."""

    scores: Scores
    D_S: Array
    t: PairedT | None
    """None with one seed or equal differences; so are the next four."""
    flip: SignFlip | None
    tost: tuple[float, float] | None
    """None as well without a margin."""
    mde: float | None
    seeds_needed: int | None
    two_way: TwoWay | None
    noise: Noise | None
    over_problems: tuple[float, float] | None
    """With one seed."""
    correlation: float | None
    """Of the two arms over seeds: pairing gains what it is above 0."""
    margin: float | None


def scores(pair: Pair, number: Number) -> Scores:
    """The numbers of a pair whose preconditions hold."""
    left, right = [pair.left[s] for s in pair.seeds], [pair.right[s] for s in pair.seeds]
    if isinstance(number, BenchNumber) and number.kind == "elo":
        a_S, b_S = (np.array([m.answers.elo for m in side if m.answers], np.float64) for side in (left, right))
        return Scores(a_S, b_S)
    if isinstance(number, BenchNumber) and all(m.answers for m in (*left, *right)):
        a_SJ, b_SJ = (np.stack([m.answers.by_problem(number) for m in side if m.answers]) for side in (left, right))
        k = number.k if number.kind == "avg" else None
        named = left[0].answers.contests if left[0].answers else None
        contests = None if named is None else np.array(named)
        return Scores(a_SJ.mean(axis=1), b_SJ.mean(axis=1), (a_SJ, b_SJ), k, True, contests)
    if isinstance(number, BenchNumber):
        a_S, b_S = (np.array([last_value(m, number.metric) for m in side]) for side in (left, right))
    else:
        ends = axis_range([*left, *right], number)
        a_S, b_S = (np.array([curve_number(m, number, ends) for m in side]) for side in (left, right))
    both = np.concatenate([a_S, b_S])
    share = unit_of(number) in ("frac", "reward") and both.min() >= 0 and both.max() <= 1
    return Scores(a_S, b_S, points=bool(share))


def last_value(member: Member, metric: str) -> float:
    """The last logged value of a metric."""
    assert member.curves is not None
    return float(member.curves.values[metric].iloc[-1])


def curve_number(member: Member, number: CurveNumber, ends: tuple[float, float]) -> float:
    """One run's number; a run that failed keeps its last value to the end of the plan or the range."""
    assert member.curves is not None
    found = member.curves.xy(number.metric, number.budget)
    assert found is not None, member.name
    if number.axis is None:
        return last_mean(*found, member.facts.planned)
    return area_mean(*found, *ends)


def axis_range(members: list[Member], number: CurveNumber) -> tuple[float, float]:
    """From the largest first to the smallest last position of the runs that reached their budget (of all runs, if none
    did), so that every number is an area over the same stretch."""
    curves = [(m, m.curves.xy(number.metric, number.budget)) for m in members if m.curves]
    found = [(m, xy[0]) for m, xy in curves if xy is not None]
    whole = [x for m, x in found if m.facts.status == "completed"] or [x for _, x in found]
    return max(float(x[0]) for x in whole), min(float(x[-1]) for x in whole)


def curves_apart_from(pair: Pair, number: Number) -> int | None:
    """The step from which on the two arms' curves differ, at 5 % for all steps at once; None if there is none, for a
    benchmark, and with fewer seeds than an exact test needs."""
    if isinstance(number, BenchNumber) or len(pair.seeds) < FEWEST:
        return None
    both = [[m.curves.values[number.metric] for s in pair.seeds if (m := side[s]).curves] for side in
            (pair.left, pair.right)]  # fmt: skip
    steps = reduce(pd.Index.intersection, [curve.index for side in both for curve in side]).sort_values()
    if not len(steps):
        return None
    a_ST, b_ST = (np.stack([curve.loc[steps].to_numpy(np.float64) for curve in side]) for side in both)
    return apart_from(steps.to_numpy(), max_t(b_ST - a_ST))


def measure(found: Scores, margin: float | None) -> Measured:
    """All tests on the differences; `margin` as declared, in points where they are told in points."""
    D_S = found.treatment_S - found.baseline_S
    if margin is None:
        own = DEFAULT_MARGIN / 100 if found.points else None
    else:
        own = margin / 100 if found.points else margin
    spread = not stats_pairs.is_flat(D_S)
    t = stats_pairs.paired_t(D_S) if spread else None
    cube, sides = found.cube, (found.baseline_S, found.treatment_S)
    steady = len(D_S) < 3 or any(stats_pairs.is_flat(side) for side in sides)
    return Measured(
        scores=found,
        D_S=D_S,
        t=t,
        flip=stats_pairs.sign_flip(D_S) if t else None,
        tost=stats_pairs.tost(D_S, own) if t and own else None,
        mde=stats_power.mde(t.sd, t.n) if t else None,
        seeds_needed=stats_power.seeds_needed(t.sd, own) if t and own else None,
        two_way=stats_problems.two_way(cube[1] - cube[0], found.contests_J) if cube and t else None,
        noise=stats_problems.noise_split(*cube, found.k) if cube and found.k else None,
        over_problems=stats_problems.over_problems((cube[1] - cube[0])[0]) if cube and len(D_S) == 1 else None,
        correlation=None if steady else float(np.corrcoef(*sides)[0, 1]),
        margin=own,
    )
