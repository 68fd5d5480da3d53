"""From the statistics of a comparison to its verdict, and the one sentence that each verdict permits.

The rule that permits the word "better" is `permits_better`; everything weaker follows in `judge`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import floor, log10
from typing import Generic, Literal, TypeVar

import numpy as np

from gspo_cli.stats.paired import ALPHA, FEWEST, levels, mcnemar
from gspo_cli.stats.problems import Array
from gspo_cli.stats.robust import most

T = TypeVar("T")

Verdict = Literal[
    "refused", "two_checkpoints", "no_claim", "inconclusive", "suggestive", "suggestive_equal", "better", "different",
    "equal",
]  # fmt: skip
"""`different` replaces `better` for a metric without a good direction."""
Interval = tuple[float, float]

FEWEST_TO_SUGGEST = 4
"""Seeds below which no interval covers the mean of skewed differences in 93 % of studies."""


@dataclass(frozen=True, slots=True)
class Sides(Generic[T]):
    """Something of each arm."""

    baseline: T
    treatment: T


@dataclass(frozen=True, slots=True)
class Collapses:
    """The seeds of the collapsed runs of a pair of arms."""

    baseline: list[int]
    treatment: list[int]
    p: float
    """Exact McNemar test over the seeds where only one arm collapsed."""
    most: Sides[float]
    """The largest probability of a collapse that the counts still allow (exact, one-sided 95 %)."""

    def among(self, seeds: list[int]) -> Array:
        """Which of these pairs have a collapsed run: bool [S]."""
        return np.isin(seeds, [*self.baseline, *self.treatment])


def count_collapses(baseline: list[int], treatment: list[int], num_pairs: int) -> Collapses:
    """The collapses of `num_pairs` pairs of runs, given the seeds of the collapsed ones."""
    p = mcnemar(len(set(baseline) - set(treatment)), len(set(treatment) - set(baseline)))
    return Collapses(baseline, treatment, p, Sides(most(len(baseline), num_pairs), most(len(treatment), num_pairs)))


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a verdict depends on. Differences are treatment minus baseline, in the metric's own unit."""

    n: int
    """Pairs of runs in which neither collapsed: all numbers below are about their mean difference."""
    effect: float
    pairs: int | None = None
    """All pairs; None = as many as `n`."""
    collapses: Collapses | None = None
    """None where collapse plays no part."""
    below_start: Sides[list[int]] | None = None
    """The seeds of runs that ended below where they began, collapsed or not; they count in every test."""
    collapses_unknown: bool = False
    """Whether runs may have collapsed and nobody says which: then nothing holds for the mean over all runs."""
    all_runs: bool = False
    """Whether the sign holds for the mean over all runs, collapsed ones included, by `holds_for_all_runs`."""
    unequal: str = ""
    """Why the arms were not tuned alike; empty if they were, or if that plays no part."""
    flat: bool = False
    """Whether all seed differences are equal, so that there is no interval and no p."""
    ci: Interval | None = None
    """95 %, over seeds: around Student's and the skewness-corrected interval."""
    ci_equal: Interval | None = None
    """The interval that must lie within the margin for "equal"."""
    p_t: float | None = None
    """`PairedT.p_mean`; Holm-adjusted unless the comparison is the primary one."""
    p_exact: float | None = None
    p_equal: float | None = None
    """Of the two one-sided tests against the margin; None without a margin."""
    new_problems: Interval | None = None
    """95 %, two-way clustered; with one seed over problems."""
    margin: float | None = None
    mde: float | None = None
    """The difference that this many seeds detect with 80 % power."""
    seeds_needed: int | None = None
    """To detect the margin with that power; None = more than a million."""


def num_pairs(evidence: Evidence) -> int:
    """All pairs of runs, those with a collapse included."""
    return evidence.n if evidence.pairs is None else evidence.pairs


def permits_better(evidence: Evidence) -> bool:
    """The rule for "better": at least `FEWEST` pairs without a collapse, and the paired t test, the same corrected for
    skewness and the exact sign-flip test all pass.

    Because all must pass, at most 5 % of normal and 7 % of strongly skewed studies without any difference get the word.
    """
    e = evidence
    return e.n >= FEWEST and e.p_t is not None and e.p_exact is not None and max(e.p_t, e.p_exact) <= ALPHA


def judge(evidence: Evidence, better: str) -> Verdict:
    """The first rule that applies, from few seeds to many; `better` is the metric's good direction."""
    e = evidence
    if num_pairs(e) < FEWEST_TO_SUGGEST:
        return "two_checkpoints" if num_pairs(e) == 1 else "no_claim"
    if e.n < FEWEST_TO_SUGGEST or e.flat or e.ci is None or e.p_t is None or e.p_exact is None:
        return "inconclusive"
    if permits_better(e):
        return "suggestive" if e.unequal else "different" if better == "neither" else "better"
    differ, equal = e.p_t <= ALPHA, within_margin(e)
    if e.n < FEWEST or e.unequal:
        return "suggestive" if differ else "suggestive_equal" if equal else "inconclusive"
    if equal:
        return "equal"
    return "suggestive" if differ and e.p_exact > ALPHA else "inconclusive"


def excludes_zero(interval: Interval | None) -> bool:
    """Whether an interval lies on one side of 0."""
    return interval is not None and not interval[0] <= 0 <= interval[1]


def within_margin(evidence: Evidence) -> bool:
    """Whether equality within the margin is shown; a difference that is not significant does not show it."""
    return evidence.p_equal is not None and evidence.p_equal <= levels(evidence.n).equal


@dataclass(frozen=True, slots=True)
class Wording:
    """The names and units that a sentence uses."""

    baseline: str
    treatment: str
    number: str
    """`reward/mean:area@steps`, `aime24/avg@32`."""
    recipe: str
    """Empty where it is not known, nor what was equal."""
    budget: str
    """What was equal on both sides: steps, tokens, seconds."""
    points: bool
    """Whether the metric lies within [0, 1] and is reported in points (x 100)."""
    unit: str
    """Of any other metric."""
    better: str
    """The metric's good direction: `higher`, `lower`, or `neither`."""
    declared: bool = True
    """Whether the recipe had fixed this comparison before the runs."""
    why_exploratory: str = ""
    """What differs from the plan, if it is the set of seeds."""
    conditions: str = ""
    """The settings and tuning of both arms, as sentences of their own."""
    look: str = ""
    """Which of several planned looks this is, as a sentence."""
    problem: str = "problem"
    """What a score is a mean over."""

    def size(self, value: float) -> str:
        """A margin or a detectable difference."""
        return f"{value * self.scale:.3g} {self.shown_unit}"

    def difference(self, value: float, interval: Interval | None, percent: int = 95) -> str:
        """`+4.1 points [1.2, 7.0]`, with as many decimals as show two digits of the interval's half width."""
        half = abs(value) if interval is None else (interval[1] - interval[0]) / 2
        digits = _decimals(half * self.scale)
        text = f"{value * self.scale:+.{digits}f} {self.shown_unit}"
        if interval is None:
            return text
        low, high = (f"{end * self.scale:.{digits}f}" for end in interval)
        return f"{text} [{low}, {high}]" if percent == 95 else f"{text} [{percent} % interval {low}, {high}]"

    @property
    def scale(self) -> float:
        """Of reported values."""
        return 100.0 if self.points else 1.0

    @property
    def shown_unit(self) -> str:
        """Of reported values."""
        return "points" if self.points else self.unit


def _decimals(half_width: float) -> int:
    """The decimals that show two digits of a half width; at least one."""
    return 1 if half_width <= 0 else min(9, max(1, 1 - floor(log10(half_width))))


def sentence(verdict: Verdict, evidence: Evidence, wording: Wording) -> str:
    """The sentence of a verdict. It names the arm with the better value first, whichever that is; where it names no
    arm, the difference is treatment minus baseline."""
    text = SENTENCES[verdict](evidence, wording)
    if verdict not in ("two_checkpoints", "no_claim"):
        text = " ".join(
            part for part in (text, wording.look, _collapses(evidence, wording), wording.conditions) if part
        )
    if wording.why_exploratory:
        return f"Exploratory ({wording.why_exploratory}): {text}"
    return text if wording.declared else f"Exploratory: {text}"


def refusal(count: int) -> str:
    """The sentence when preconditions fail."""
    return f"No comparison: {count} precondition{'s' if count > 1 else ''} fail{'' if count > 1 else 's'}."


def _better_first(e: Evidence, w: Wording, interval: Interval | None) -> tuple[str, str, str]:
    """(the arm to name first, the other one, first minus other with its interval)."""
    if (e.effect < 0) if w.better == "lower" else (e.effect > 0):
        return w.treatment, w.baseline, w.difference(e.effect, interval)
    return w.baseline, w.treatment, w.difference(-e.effect, (-interval[1], -interval[0]) if interval else None)


def _setting(e: Evidence, w: Wording) -> str:
    if not w.recipe:
        return f"on {w.number}, {estimand(e)}"
    return f"on {w.number} under recipe {w.recipe} at equal {w.budget}, {estimand(e)}"


def estimand(e: Evidence) -> str:
    """What the difference is the mean of."""
    if e.collapses is None:
        return "mean over runs if none collapses" if e.collapses_unknown else "mean over runs"
    return "mean over all runs" if e.all_runs else "mean of runs that do not collapse"


def _seeds(e: Evidence) -> str:
    """`N=6 seeds`, or `N=6 of 8 seeds` where pairs with a collapsed run are left out."""
    return f"N={e.n} seeds" if e.pairs in (None, e.n) else f"N={e.n} of {e.pairs} seeds"


def _collapses(e: Evidence, w: Wording) -> str:
    """How often each arm collapsed, and which one does so more often if the exact test shows it."""
    c = e.collapses
    if c is None:
        return ""
    pairs, sunk, below = num_pairs(e), e.below_start, ""
    arms = sorted([(w.treatment, c.treatment, c.most.treatment), (w.baseline, c.baseline, c.most.baseline)])
    text = ", ".join(f"{arm} {len(seeds)} of {pairs} (at most {100 * share:.0f} %)" for arm, seeds, share in arms)
    if sunk and (sunk.baseline or sunk.treatment):
        counts = sorted([(w.treatment, len(sunk.treatment)), (w.baseline, len(sunk.baseline))])
        below = f" Ended below their start: {', '.join(f'{arm} {count} of {pairs}' for arm, count in counts)}."
    if c.p > ALPHA:
        return f"Collapsed runs: {text}.{below}"
    first, other = (w.treatment, w.baseline) if len(c.treatment) > len(c.baseline) else (w.baseline, w.treatment)
    return f"Collapsed runs: {text}; {first} collapses more often than {other} (exact p = {c.p:.2g}).{below}"


def _two_checkpoints(e: Evidence, w: Wording) -> str:
    first, _, difference = _better_first(e, w, e.new_problems)
    over = f" over {w.problem}s" if e.new_problems else ""
    return f"Two checkpoints: {first} {difference} on {w.number}{over}; no statement about the algorithms."


def _different(relation: str, e: Evidence, w: Wording) -> str:
    first, other, difference = _better_first(e, w, e.ci)
    new = f", also for new {w.problem}s" if excludes_zero(e.new_problems) else ""
    claim = f"{first} {relation} {other} {_setting(e, w)}: {difference}, {_seeds(e)}{new}."
    if e.margin is None or not within_margin(e):
        return claim
    return f"{claim} The difference is within the margin of {w.size(e.margin)}."


def _equal(e: Evidence, w: Wording) -> str:
    percent = round(100 * (1 - 2 * levels(e.n).equal))
    difference = w.difference(e.effect, e.ci_equal, percent)
    return f"Equal within {w.size(e.margin or 0)} {_setting(e, w)}: {difference}, {_seeds(e)}."


def _suggestive_equal(e: Evidence, w: Wording) -> str:
    why = f"; {e.unequal}" if e.unequal else ""
    return f"Suggestive of equality within {w.size(e.margin or 0)} on {w.number}, {estimand(e)}; {_seeds(e)}{why}."


def _no_claim(e: Evidence, w: Wording) -> str:
    more = f"; no number allows a claim: {e.unequal}" if e.unequal else f", {FEWEST} a claim"
    what = f"about {w.treatment} and {w.baseline} on {w.number} from {num_pairs(e)} seeds"
    return f"No claim {what}: {FEWEST_TO_SUGGEST} allow a suggestion{more}."


def _suggestive(e: Evidence, w: Wording) -> str:
    first, _, difference = _better_first(e, w, e.ci)
    claim = f"Suggestive: {first} {difference} on {w.number}, {estimand(e)}, {_seeds(e)}"
    if e.n < FEWEST:
        return f"{claim}; an exact test cannot reach 0.05 with {e.n} seeds{', and ' + e.unequal if e.unequal else ''}."
    if e.unequal:
        return f"{claim}; {e.unequal}."
    return f"{claim}; the exact test does not reach 0.05 (p = {e.p_exact:.3g})."


def _inconclusive(e: Evidence, w: Wording) -> str:
    if e.n < FEWEST_TO_SUGGEST:
        return (
            f"Inconclusive on {w.number}: in {e.n} of {e.pairs} pairs neither run collapsed; {FEWEST_TO_SUGGEST} such "
            f"pairs allow a suggestion, {FEWEST} a claim."
        )
    if e.flat:
        return (
            f"Inconclusive on {w.number}: all seed differences are equal ({w.difference(e.effect, None)}); "
            "benchmark at floor or ceiling, or seeds that do not vary."
        )
    parts = [f"Inconclusive on {w.number}, {estimand(e)}: {w.difference(e.effect, e.ci)}, {_seeds(e)}"]
    if excludes_zero(e.ci):  # adjusted for several arms or looks, or for the skewness that few seeds hide
        parts.append(f"not every test excludes 0 (adjusted p = {max(e.p_t or 0, e.p_exact or 0):.2g})")
    if e.mde is not None:
        parts.append(f"differences under {w.size(e.mde)} could be missed")
    if e.margin is not None and e.seeds_needed is not None:
        parts.append(f"about {e.seeds_needed} seeds would detect {w.size(e.margin)}")
    elif e.n < FEWEST:
        parts.append(f"{FEWEST} seeds are the fewest for a claim")
    return "; ".join(parts) + "."


SENTENCES: dict[Verdict, Callable[[Evidence, Wording], str]] = {
    "two_checkpoints": _two_checkpoints,
    "no_claim": _no_claim,
    "inconclusive": _inconclusive,
    "suggestive": _suggestive,
    "suggestive_equal": _suggestive_equal,
    "better": partial(_different, "better than"),
    "different": partial(_different, "above"),
    "equal": _equal,
}
"""Verdict -> its sentence; only that of `better` may say which arm is."""
