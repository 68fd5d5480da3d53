"""The claims of the GSPO paper (arXiv 2507.18071) and of SAPO's (2511.20347), and what decides each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gspo_cli.report.compare.verdict import Evidence, judge, num_pairs, within_margin
from gspo_cli.stats.paired import ALPHA, FEWEST

Rule = Literal["ahead", "not_ahead_needed", "needed", "fewer_collapses", "ahead_or_fewer_collapses", "equal", "inside",
               "ahead_twice"]  # fmt: skip
"""What supports a claim and what contradicts it; `verdict_of` has both."""
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


def verdict_of(rule: Rule, e: Evidence, better: str, second: Evidence | None = None) -> ClaimVerdict:
    """The verdict of one claim. A suggestive result is inconclusive, as is any with fewer than `FEWEST` seeds.

    `e` = treatment minus baseline, with the p-values of all its tests adjusted; for `inside`, the value minus the
    band's middle, with half its width as margin. `better` = the number's good direction. `second` = for `ahead_twice`,
    the same treatment against a second baseline.
    """
    c, num_runs = e.collapses, num_pairs(e)
    if num_runs < FEWEST:
        return "inconclusive"
    ahead, behind, equal = _shows(e, better, 1), _shows(e, better, -1), judge(e, better) == "equal"
    more = len(c.treatment) - len(c.baseline) if c and c.p <= ALPHA else 0  # collapses, where that is shown
    stable = c is not None and not c.baseline
    unneeded = stable and c is not None and not c.treatment
    only_baseline = c is not None and len(c.baseline) == num_runs and not c.treatment
    outside = e.ci is not None and e.margin is not None and (e.ci[0] > e.margin or e.ci[1] < -e.margin)
    # rule -> (what supports the claim, what contradicts it)
    rules: dict[Rule, tuple[bool, bool]] = {
        "ahead": (ahead, behind),
        "fewer_collapses": (more < 0, more > 0),
        "ahead_or_fewer_collapses": ((ahead and more <= 0) or (more < 0 and not behind), behind or more > 0),
        "needed": ((ahead and more < 0) or only_baseline, equal and unneeded),
        "not_ahead_needed": (equal and stable, ahead),
        "equal": (equal, behind),
        "inside": (within_margin(e), outside),
        "ahead_twice": (ahead and second is not None and _shows(second, better, 1), behind),
    }
    supported, contradicted = rules[rule]
    return "supported" if supported else "contradicted" if contradicted else "inconclusive"


def _shows(e: Evidence, better: str, sign: int) -> bool:
    """Whether the treatment is ahead (1) or behind (-1)."""
    return judge(e, better) in ("better", "different") and e.effect * sign > 0
