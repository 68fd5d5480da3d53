"""What supports and what contradicts a claim, from the verdict of its comparison and the collapsed runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gspo_cli.report.claim_list import Rule
from gspo_cli.report.collapses import Collapses
from gspo_cli.report.verdict import ALPHA, FEWEST, Code, Evidence

Verdict = Literal["supported", "contradicted", "inconclusive", "not_tested"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a row's runs show."""

    code: Code
    """Of the comparison, by the rules of `report compare`."""
    evidence: Evidence
    """Treatment minus baseline; for `inside`, the value minus the band's middle, with half its width as margin."""
    collapses: Collapses | None
    """With the p of McNemar's test adjusted like the others."""
    second: Outcome | None = None
    """For `ahead_twice`: the same treatment against a second baseline."""


def verdict_of(rule: Rule, outcome: Outcome) -> Verdict:
    """The verdict of one row. A suggestive result is inconclusive, and so is any with fewer than `FEWEST` seeds."""
    if outcome.evidence.n < FEWEST:
        return "inconclusive"
    supported, contradicted = RULES[rule]
    return "supported" if supported(outcome) else "contradicted" if contradicted(outcome) else "inconclusive"


def _apart(o: Outcome) -> bool:
    return o.code in ("better", "different")


def _ahead(o: Outcome) -> bool:
    return _apart(o) and o.evidence.effect > 0


def _behind(o: Outcome) -> bool:
    return _apart(o) and o.evidence.effect < 0


def _equal(o: Outcome) -> bool:
    return o.code == "equal"


def _fewer(o: Outcome) -> bool:
    c = o.collapses
    return c is not None and len(c.treatment) < len(c.baseline) and c.p <= ALPHA


def _more(o: Outcome) -> bool:
    c = o.collapses
    return c is not None and len(c.treatment) > len(c.baseline) and c.p <= ALPHA


def _none_collapsed(o: Outcome) -> bool:
    return o.collapses is not None and not o.collapses.baseline and not o.collapses.treatment


def _needed(o: Outcome) -> bool:
    """The baseline goes without what the treatment has, and falls."""
    c = o.collapses
    all_fell = c is not None and len(c.baseline) == o.evidence.n and not c.treatment
    return (_ahead(o) and _fewer(o)) or all_fell


def _outside(o: Outcome) -> bool:
    """Whether the 95 % interval lies outside the band."""
    e = o.evidence
    return e.ci is not None and e.margin is not None and (e.ci[0] > e.margin or e.ci[1] < -e.margin)


def _inside(o: Outcome) -> bool:
    return o.evidence.p_equal is not None and o.evidence.p_equal < ALPHA


Test = Callable[[Outcome], bool]

RULES: dict[Rule, tuple[Test, Test]] = {
    "ahead": (_ahead, _behind),
    "fewer_collapses": (_fewer, _more),
    "ahead_or_fewer_collapses": (lambda o: (_ahead(o) and not _more(o)) or (_fewer(o) and not _behind(o)),
                                 lambda o: _behind(o) or _more(o)),
    "needed": (_needed, lambda o: _equal(o) and _none_collapsed(o)),
    "not_ahead_needed": (lambda o: _equal(o) and o.collapses is not None and not o.collapses.baseline, _ahead),
    "equal": (_equal, _behind),
    "inside": (_inside, _outside),
    "ahead_twice": (lambda o: _ahead(o) and o.second is not None and _ahead(o.second), _behind),
}  # fmt: skip
"""Rule -> (what supports the claim, what contradicts it)."""
