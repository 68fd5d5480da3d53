"""What a comparison found, and how it becomes JSON. Differences are treatment minus baseline."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic_core import to_jsonable_python

from gspo_cli.config import Tuning
from gspo_cli.report.compare.learning_curves import LearningCurve
from gspo_cli.report.compare.preconditions import Failure
from gspo_cli.report.compare.scores import DifferenceStats, difference_stats
from gspo_cli.report.compare.settings import Settings
from gspo_cli.report.compare.verdict import (
    Collapses,
    Evidence,
    Interval,
    Sides,
    Verdict,
    Wording,
    estimand,
    judge,
    sentence,
)
from gspo_cli.stats.paired import holm, sd_range
from gspo_cli.stats.robust import pairs_for_all_runs
from gspo_cli.stats.starts import StartShare

Table = dict[str, Any]
OTHER_SAMPLES = (0.25, 4.0)
"""Multiples of k for which the expected standard deviation is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A pair of arms, and the sentence about it."""

    verdict: Verdict | Literal["descriptive"]
    sentence: str
    metric: str
    baseline: str
    treatment: str
    declared: bool = False
    reasons: list[Failure] = field(default_factory=list)
    """Why there is no comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described(Found):
    """Imported runs: nothing is tested."""

    arms: list[dict[str, Any]]
    """`arm`, its `values` by seed, and these as `text`."""
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested(Found):
    """A verdict with what it rests on, from which verdict and sentence follow."""

    verdict: Verdict = field(init=False)
    sentence: str = field(init=False)
    seeds: list[int]
    stats: DifferenceStats
    evidence: Evidence
    wording: Wording
    """Also says in which unit the values are, and which direction is good."""
    p_holm: float | None = None
    """Of the t test, adjusted for several comparisons; None where it is not."""
    p_equal_holm: float | None = None
    """Of the equality test, likewise."""
    apart_from_step: int | None = None
    """From which the arms' curves differ."""

    def __post_init__(self) -> None:
        verdict = judge(self.evidence, self.wording.better)
        object.__setattr__(self, "verdict", verdict)
        object.__setattr__(self, "sentence", sentence(verdict, self.evidence, self.wording))

    @property
    def per_seed(self) -> list[tuple[int, float, float, float]]:
        """(seed, the baseline's score, the treatment's, their difference)."""
        columns = (self.stats.scores.baseline_S, self.stats.scores.treatment_S, self.stats.D_S)
        return list(zip(self.seeds, *(x_S.tolist() for x_S in columns), strict=True))

    @property
    def pairs_for_all_runs(self) -> int | None:
        """Pairs without a collapse from which the statement would hold for all runs."""
        t = self.stats.t
        if t is None or not self.stats.scores.points:
            return None
        return pairs_for_all_runs(t.ci[0] if self.stats.effect > 0 else -t.ci[1])

    @property
    def sd_at(self) -> dict[str, float]:
        """The expected standard deviation between seeds with other numbers of samples."""
        noise = self.stats.noise
        return {f"{factor:g} k": noise.sd(factor) for factor in OTHER_SAMPLES} if noise else {}


Adjusted = TypeVar("Adjusted", bound=Tested)


ALL_PAIRS = "all pairs, collapsed runs included"
NONE_BELOW = "only pairs in which no run collapsed or ended below its start"


@dataclass(frozen=True, slots=True)
class OtherPairs:
    """The verdict over other pairs than the comparison's."""

    pairs: str
    """`ALL_PAIRS` or `NONE_BELOW`."""
    n: int
    effect: float
    ci: Interval | None
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Tested):
    """Two arms of a study."""

    budget: Table
    """What each arm spent on average per run: on every `axis`, both sides and their `ratios`, treatment over baseline;
    None where some run's log does not say."""
    collapses: Collapses | None
    """None where the logs do not show them."""
    below_start: Sides[list[int]]
    """Seeds of runs that ended below where they began; they count in every test."""
    sensitivity: list[OtherPairs]
    tuning: dict[str, Tuning | None]
    """Arm -> its `report.tuning`."""
    settings: Settings
    start_share: dict[str, StartShare] | None
    learning_curves: list[LearningCurve]
    failed: list[Table]
    """`run` and `reason`."""
    invalidated: list[Table]
    waivers: list[Failure]
    ungraded_as_wrong: int
    all_seeds: dict[str, list[int]]
    data: Table
    """What the runs were trained on and, for stored answers, evaluated on."""
    notes: list[str]
    runs: list[Table]
    """Where each run comes from."""
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class StudyComparison:
    """The study's primary pair of arms, and the others with the same baseline."""

    study: str
    primary: Found
    others: list[Found]
    unsaved: str = ""
    """Why `compare.json` could not be written, as in a study that may only be read."""

    def to_json(self) -> Table:
        """As `compare.json` holds it."""
        return {"study": self.study} | to_json(self.primary) | {"others": [to_json(one) for one in self.others]}


def adjust(family: Sequence[Adjusted]) -> list[Adjusted]:
    """Comparisons with their p-values adjusted as one family, and the verdicts that follow."""
    p_t, p_equal = (
        holm({i: getattr(one.evidence, name) for i, one in enumerate(family)}) for name in ("p_t", "p_equal")
    )
    return [
        replace(
            one, evidence=replace(one.evidence, p_t=p_t.get(i), p_equal=p_equal.get(i)),
            p_holm=p_t.get(i), p_equal_holm=p_equal.get(i),
        )
        for i, one in enumerate(family)
    ]  # fmt: skip


def sensitivity(seeds: list[int], stats: DifferenceStats, evidence: Evidence, better: str) -> list[OtherPairs]:
    """The verdict with the pairs that a collapse leaves out, and without those in which a run ended below its start;
    only where that changes the pairs. Not adjusted for several arms."""
    sunk = evidence.below_start
    below = np.isin(seeds, [*sunk.baseline, *sunk.treatment] if sunk else [])
    margin = stats.margin and stats.margin * (100 if stats.scores.points else 1)
    found = []
    for name, out_S in ((ALL_PAIRS, np.zeros(len(seeds), dtype=bool)), (NONE_BELOW, below | ~stats.kept_S)):
        if len(seeds) == 1 or out_S.all() or (~out_S == stats.kept_S).all():
            continue
        other = difference_stats(stats.scores, margin, out_S, stats.looks).evidence(unequal=evidence.unequal)
        verdict = judge(replace(other, pairs=other.n), better)
        found.append(OtherPairs(name, other.n, other.effect, other.ci, verdict))
    return found


def to_json(found: Found) -> Table:
    """Plain values, in full precision; null for what has no value."""
    kept = {f.name: getattr(found, f.name) for f in fields(found) if f.name not in ("stats", "evidence", "wording")}
    if isinstance(found, Tested):
        kept |= _numbers(found)
    if isinstance(found, Compared):
        known = found.stats.scores.unit_known
        kept |= {"recipe": found.wording.recipe, "better": found.wording.better, "unit_known": known}
    plain: Table = to_jsonable_python(kept)
    return plain


def _numbers(found: Tested) -> Table:
    """The estimates, intervals and tests behind a sentence."""
    stats, evidence = found.stats, found.evidence
    t, flip, noise, cube, contests_J = stats.t, stats.flip, stats.noise, stats.scores.cube, stats.scores.contests_J
    p_values = [p for p in (evidence.p_t, evidence.p_exact) if p is not None]
    names = ("median", "iqm", "improvement", "looks", "two_way", "margin", "p_equal", "mde", "seeds_needed",
             "correlation")  # fmt: skip
    of_t = ("sd", "ci_t", "skew", "p_skew", "t", "df", "p_mean")
    return {
        **{name: getattr(stats, name) for name in names},
        **{name: t and getattr(t, name) for name in of_t},
        "n": evidence.n,
        "n_pairs": len(stats.D_S),
        "estimand": estimand(evidence),
        "unit": found.wording.unit,
        "points": found.wording.points,
        "n_problems": None if cube is None else cube[0].shape[1],
        "n_contests": None if contests_J is None else len(set(contests_J.tolist())),
        "k": stats.scores.k,
        "effect": evidence.effect,
        "ci": evidence.ci,
        "ci_method": "over seeds, 95 %: around paired t and the same corrected for skewness",
        "ci_equal": evidence.ci_equal,
        "pairs_for_all_runs": found.pairs_for_all_runs,
        "p_t": t and t.p,
        "p_exact": flip and flip.p,
        "exact": flip and flip.exact,
        "exact_flips": flip and flip.flips,
        "p_claim": max(p_values) if p_values else None,
        "ci_over_problems": stats.over_problems,
        "sd_range": sd_range(evidence.n) if t else None,
        "noise": noise and asdict(noise) | {"share": noise.share, "sd_at": found.sd_at},
        "per_seed": [dict(zip(("seed", "baseline", "treatment", "difference"), row, strict=True))
                     for row in found.per_seed],
    }  # fmt: skip
