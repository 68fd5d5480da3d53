"""The claims of the GSPO paper (arXiv 2507.18071) and of SAPO's (2511.20347), and what decides each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from gspo_cli.report.compare.scores import Collapses
from gspo_cli.report.compare.verdict import Evidence, Verdict, num_pairs, within_margin
from gspo_cli.stats.paired import ALPHA, FEWEST

Rule = Literal["ahead", "not_ahead_needed", "needed", "fewer_collapses", "ahead_or_fewer_collapses", "equal", "inside",
               "ahead_twice"]  # fmt: skip
"""What supports a claim and what contradicts it; `RULES` has both."""
ClaimVerdict = Literal["supported", "contradicted", "inconclusive", "not_tested"]


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """An arm by its `[algo]` table."""

    algorithm: str
    replay: str = "none"
    """`paper` = r2 on a mixture of experts if the study has such an arm, else none."""
    old_log_probs: str = "trainer"


@dataclass(frozen=True, slots=True)
class Claim:
    """One row."""

    id: str
    text: str
    place: str
    baseline: ArmSpec
    treatment: ArmSpec
    number: str
    """As `report.metric`; besides, `clip_ratio` = log10 of the ratio of clip fractions, `clip_range` = its change
    between clip ranges, `churn` = expert churn, `noise_slope` = b of gradient noise ~ length^b on stored batches."""
    rule: Rule
    recipe: str
    """The recipe that trains the runs it needs."""
    needs_experts: bool = False
    """Whether it is about mixture-of-experts models only."""
    band: tuple[float, float] | None = None
    """For `inside`: where the value must lie."""

    @property
    def baseline_plain(self) -> ArmSpec:
        """The baseline without Routing Replay."""
        return replace(self.baseline, replay="none")


GRPO, GSPO, SAPO = ArmSpec("grpo", "paper"), ArmSpec("gspo"), ArmSpec("sapo")
AREA = "reward/mean:area@steps"

CLAIMS = (
    Claim("reward_queries", "higher training reward at equal consumed queries", "Fig. 1", GRPO, GSPO, AREA, "ahead",
          "claims/reward"),
    Claim("reward_compute", "higher training reward at equal compute", "Fig. 1", GRPO, GSPO,
          "reward/mean:area@seconds", "ahead", "claims/reward"),
    Claim("benchmark_aime24", "higher AIME'24 avg@32", "Fig. 1", GRPO, GSPO, "aime24/avg@32", "ahead",
          "claims/reward-30b"),
    Claim("benchmark_livecodebench", "higher LiveCodeBench avg@8", "Fig. 1", GRPO, GSPO, "livecodebench/avg@8", "ahead",
          "claims/reward-30b"),
    Claim("benchmark_codeforces", "higher CodeForces Elo", "Fig. 1", GRPO, GSPO, "codeforces/elo", "ahead",
          "claims/reward-30b"),
    Claim("stable", "trains stably, without collapse", "§1, §5.1", GRPO, GSPO, AREA, "fewer_collapses",
          "claims/reward"),
    Claim("clip_more", "GSPO clips more tokens", "Fig. 2", GRPO, GSPO, "clip_ratio", "ahead", "claims/reward"),
    Claim("clip_100x", "by about two orders of magnitude", "Fig. 2", GRPO, GSPO, "clip_ratio", "inside",
          "claims/reward", band=(1.5, 2.5)),
    Claim("clip_range", "changing the clip ranges does not alter that", "§5.2", GRPO, GSPO, "clip_range", "inside",
          "claims/clip-range", band=(-0.5, 0.5)),
    Claim("churn_10", "about 10 % of the activated experts change with an update (48 layers)", "§5.3",
          ArmSpec("grpo"), ArmSpec("grpo"), "churn", "inside", "claims/expert-change", True, (0.05, 0.15)),
    Claim("grpo_needs_replay", "GRPO on a mixture of experts needs Routing Replay", "§5.3, Fig. 3",
          ArmSpec("grpo"), ArmSpec("grpo", "r2"), "reward/mean:last10", "needed", "claims/replay", True),
    Claim("gspo_no_replay", "GSPO needs none", "§5.3", ArmSpec("gspo"), ArmSpec("gspo", "r2"), "reward/mean:last10",
          "not_ahead_needed", "claims/replay", True),
    Claim("sampler_likelihoods", "GSPO can use the engine's likelihoods", "§5.4", ArmSpec("gspo"),
          ArmSpec("gspo", old_log_probs="sampler"), "reward/mean:last10", "equal", "claims/sampler-likelihoods"),
    Claim("sapo_gspo", "SAPO is steadier and better than GSPO", "arXiv 2511.20347", GSPO, SAPO, AREA,
          "ahead_or_fewer_collapses", "claims/reward"),
    Claim("sapo_grpo", "SAPO is steadier and better than GRPO", "arXiv 2511.20347", GRPO, SAPO, AREA,
          "ahead_or_fewer_collapses", "claims/reward"),
    Claim("noise_length", "token-level noise grows with response length", "§1, §4.2", ArmSpec("gspo"), ArmSpec("grpo"),
          "noise_slope", "ahead_twice", "claims/noise-length"),
)  # fmt: skip
"""The first is the primary one, not adjusted; all others are one Holm family. To add a claim, add a row."""

TOKEN_FORM = ("token_form", "GSPO-token equals GSPO for equal advantages", "§4.3", "claims/noise-length")
"""The claim that is exact, on any stored batch: id, text, place, recipe."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a claim's runs show."""

    verdict: Verdict
    """Of the comparison, by the rules of `report compare`."""
    evidence: Evidence
    """Treatment minus baseline; for `inside`, the value minus the band's middle, with half its width as margin."""
    collapses: Collapses | None
    """With the p of McNemar's test adjusted like the others."""
    second: Outcome | None = None
    """For `ahead_twice`: the same treatment against a second baseline."""


def verdict_of(rule: Rule, outcome: Outcome) -> ClaimVerdict:
    """The verdict of one claim. A suggestive result is inconclusive, as is any with fewer than `FEWEST` seeds."""
    if num_pairs(outcome.evidence) < FEWEST:
        return "inconclusive"
    supported, contradicted = RULES[rule]
    return "supported" if supported(outcome) else "contradicted" if contradicted(outcome) else "inconclusive"


def _ahead(o: Outcome) -> bool:
    return o.verdict in ("better", "different") and o.evidence.effect > 0


def _behind(o: Outcome) -> bool:
    return o.verdict in ("better", "different") and o.evidence.effect < 0


def _equal(o: Outcome) -> bool:
    return o.verdict == "equal"


def _fewer(o: Outcome) -> bool:
    c = o.collapses
    return c is not None and len(c.treatment) < len(c.baseline) and c.p <= ALPHA


def _more(o: Outcome) -> bool:
    c = o.collapses
    return c is not None and len(c.treatment) > len(c.baseline) and c.p <= ALPHA


def _baseline_stable(o: Outcome) -> bool:
    return o.collapses is not None and not o.collapses.baseline


def _needed(o: Outcome) -> bool:
    """Whether the baseline collapses without what the treatment has."""
    c = o.collapses
    only_baseline = c is not None and len(c.baseline) == num_pairs(o.evidence) and not c.treatment
    return (_ahead(o) and _fewer(o)) or only_baseline


def _not_needed(o: Outcome) -> bool:
    return _equal(o) and _baseline_stable(o) and o.collapses is not None and not o.collapses.treatment


def _outside(o: Outcome) -> bool:
    """Whether the 95 % interval lies outside the band."""
    e = o.evidence
    return e.ci is not None and e.margin is not None and (e.ci[0] > e.margin or e.ci[1] < -e.margin)


Condition = Callable[[Outcome], bool]

RULES: dict[Rule, tuple[Condition, Condition]] = {
    "ahead": (_ahead, _behind),
    "fewer_collapses": (_fewer, _more),
    "ahead_or_fewer_collapses": (lambda o: (_ahead(o) and not _more(o)) or (_fewer(o) and not _behind(o)),
                                 lambda o: _behind(o) or _more(o)),
    "needed": (_needed, _not_needed),
    "not_ahead_needed": (lambda o: _equal(o) and _baseline_stable(o), _ahead),
    "equal": (_equal, _behind),
    "inside": (lambda o: within_margin(o.evidence), _outside),
    "ahead_twice": (lambda o: _ahead(o) and o.second is not None and _ahead(o.second), _behind),
}  # fmt: skip
"""Rule -> (what supports the claim, what contradicts it)."""
