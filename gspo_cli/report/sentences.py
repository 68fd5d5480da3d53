"""The one sentence that each verdict allows. Nothing stronger is said anywhere in a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import floor, log10

from gspo_cli.report.verdict import FEWEST, Code, Evidence, Interval, excludes_zero, within_margin


@dataclass(frozen=True, slots=True)
class Wording:
    """How a sentence names things."""

    baseline: str
    treatment: str
    number: str
    """`reward/mean:area@steps`, `aime24/avg@32`."""
    recipe: str
    budget: str
    """What was equal on both sides: steps, tokens, seconds."""
    points: bool
    """Whether the metric lies within [0, 1] and is told in points (x 100)."""
    unit: str
    """Of any other metric."""
    better: str
    """The metric's good direction: `higher`, `lower`, or `neither`."""
    declared: bool = True
    """Whether the recipe had fixed this comparison before the runs."""

    @property
    def factor(self) -> float:
        """From the metric's own unit to the one told."""
        return 100.0 if self.points else 1.0

    @property
    def told(self) -> str:
        """The unit told."""
        return "points" if self.points else self.unit

    def size(self, value: float) -> str:
        """A margin or a detectable difference."""
        return f"{value * self.factor:.3g} {self.told}"

    def difference(self, value: float, ends: Interval | None, percent: int = 95) -> str:
        """`+4.1 points [1.2, 7.0]`; two digits of the interval's half width decide the decimals."""
        half = abs(value) if ends is None else (ends[1] - ends[0]) / 2
        digits = decimals(half * self.factor)
        text = f"{value * self.factor:+.{digits}f} {self.told}"
        if ends is None:
            return text
        low, high = (f"{end * self.factor:.{digits}f}" for end in ends)
        return f"{text} [{low}, {high}]" if percent == 95 else f"{text} [{percent} % interval {low}, {high}]"


def decimals(half_width: float) -> int:
    """The decimals that show two digits of a half width; at least one."""
    return 1 if half_width <= 0 else min(9, max(1, 1 - floor(log10(half_width))))


def sentence(code: Code, evidence: Evidence, wording: Wording) -> str:
    """The sentence of a verdict. The arm with the better value stands first, whichever it is; where no arm is named,
    the difference is treatment minus baseline."""
    text = SENTENCES[code](evidence, wording)
    return text if wording.declared else f"Exploratory: {text}"


def refusal(count: int) -> str:
    """What is said when preconditions fail."""
    return f"No comparison: {count} precondition{'s' if count > 1 else ''} fail{'' if count > 1 else 's'}."


def _ahead(e: Evidence, w: Wording, ends: Interval | None) -> tuple[str, str, str]:
    """(the arm to name first, the other one, first minus other with its interval)."""
    if (e.effect < 0) if w.better == "lower" else (e.effect > 0):
        return w.treatment, w.baseline, w.difference(e.effect, ends)
    return w.baseline, w.treatment, w.difference(-e.effect, (-ends[1], -ends[0]) if ends else None)


def _setting(w: Wording) -> str:
    return f"on {w.number} under recipe {w.recipe} at equal {w.budget}"


def _two_checkpoints(e: Evidence, w: Wording) -> str:
    first, _, difference = _ahead(e, w, e.new_problems)
    over = " over problems" if e.new_problems else ""
    return f"Two checkpoints: {first} {difference} on {w.number}{over}; no statement about the algorithms."


def _no_claim(e: Evidence, _: Wording) -> str:
    return f"No claim from {e.n} seeds."


def _apart(relation: str) -> Callable[[Evidence, Wording], str]:
    def text(e: Evidence, w: Wording) -> str:
        first, other, difference = _ahead(e, w, e.ci)
        new = ", also for new problems" if excludes_zero(e.new_problems) else ""
        said = f"{first} {relation} {other} {_setting(w)}: {difference}, N={e.n} seeds{new}."
        if e.margin is None or not within_margin(e):
            return said
        return f"{said} The difference is within the margin of {w.size(e.margin)}."

    return text


def _equal(e: Evidence, w: Wording) -> str:
    return f"Equal within {w.size(e.margin or 0)} {_setting(w)}: {w.difference(e.effect, e.ci90, 90)}, {e.n} seeds."


def _suggestive_equal(e: Evidence, w: Wording) -> str:
    return f"Suggestive of equality within {w.size(e.margin or 0)} on {w.number}; {e.n} seeds."


def _suggestive(e: Evidence, w: Wording) -> str:
    first, _, difference = _ahead(e, w, e.ci)
    said = f"Suggestive: {first} {difference} on {w.number}"
    if e.n < FEWEST:
        return f"{said}; an exact test cannot reach 0.05 with {e.n} seeds."
    return f"{said}; the exact test does not reach 0.05 (p = {e.p_exact:.3g})."


def _inconclusive(e: Evidence, w: Wording) -> str:
    if e.flat:
        return (
            f"Inconclusive on {w.number}: all seed differences are equal ({w.difference(e.effect, None)}); "
            "benchmark at floor or ceiling, or seeds that do not vary."
        )
    parts = [f"Inconclusive on {w.number}: {w.difference(e.effect, e.ci)}, {e.n} seeds"]
    if e.mde is not None:
        parts.append(f"differences under {w.size(e.mde)} could be missed")
    if e.margin is not None:
        many = "more than a million" if e.seeds_needed is None else f"about {e.seeds_needed}"
        parts.append(f"{many} seeds would detect {w.size(e.margin)}")
    return "; ".join(parts) + "."


SENTENCES: dict[Code, Callable[[Evidence, Wording], str]] = {
    "two_checkpoints": _two_checkpoints,
    "no_claim": _no_claim,
    "inconclusive": _inconclusive,
    "suggestive": _suggestive,
    "suggestive_equal": _suggestive_equal,
    "better": _apart("better than"),
    "different": _apart("above"),
    "equal": _equal,
}
"""Verdict -> its sentence; only that of `better` may say which arm is."""
