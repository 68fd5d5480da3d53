"""The claims of the GSPO paper (arXiv 2507.18071) and of SAPO's (2511.20347) that `gspo report claims` tests.

A row says which two arms are compared by which number, and what supports or contradicts the claim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Rule = Literal["ahead", "not_ahead_needed", "needed", "fewer_collapses", "ahead_or_fewer_collapses", "equal", "inside",
               "ahead_twice"]  # fmt: skip
"""What supports a claim; `claim_rules.RULES` says it in full."""


@dataclass(frozen=True, slots=True)
class Side:
    """An arm by what its `[algo]` holds."""

    algorithm: str
    replay: str = "none"
    """`paper` = r2 on a mixture of experts where the study has such an arm, else none."""
    old_log_probs: str = "trainer"


@dataclass(frozen=True, slots=True)
class Claim:
    """One row."""

    id: str
    text: str
    place: str
    baseline: Side
    treatment: Side
    number: str
    """As `report.metric`; `clip_ratio` and `churn` are log10 of the ratio of clip fractions, and expert churn;
    `noise_slope` is b of gradient noise ~ length^b on stored batches."""
    rule: Rule
    recipe: str
    """The recipe that trains what the row needs."""
    needs_experts: bool = False
    """Whether it is about mixture-of-experts models alone."""
    band: tuple[float, float] | None = None
    """For `inside`: where the value must lie."""

    @property
    def baseline_plain(self) -> Side:
        """The baseline without Routing Replay."""
        return replace(self.baseline, replay="none")


GRPO, GSPO, SAPO = Side("grpo", "paper"), Side("gspo"), Side("sapo")
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
          Side("grpo"), Side("grpo"), "churn", "inside", "claims/expert-change", True, (0.05, 0.15)),
    Claim("grpo_needs_replay", "GRPO on a mixture of experts needs Routing Replay", "§5.3, Fig. 3",
          Side("grpo"), Side("grpo", "r2"), "reward/mean:last10", "needed", "claims/replay", True),
    Claim("gspo_no_replay", "GSPO needs none", "§5.3", Side("gspo"), Side("gspo", "r2"), "reward/mean:last10",
          "not_ahead_needed", "claims/replay", True),
    Claim("sampler_likelihoods", "GSPO can use the engine's likelihoods", "§5.4", Side("gspo"),
          Side("gspo", old_log_probs="sampler"), "reward/mean:last10", "equal", "claims/sampler-likelihoods"),
    Claim("sapo_gspo", "SAPO is steadier and better than GSPO", "arXiv 2511.20347", GSPO, SAPO, AREA,
          "ahead_or_fewer_collapses", "claims/reward"),
    Claim("sapo_grpo", "SAPO is steadier and better than GRPO", "arXiv 2511.20347", GRPO, SAPO, AREA,
          "ahead_or_fewer_collapses", "claims/reward"),
    Claim("noise_length", "token-level noise grows with response length", "§1, §4.2", Side("gspo"), Side("grpo"),
          "noise_slope", "ahead_twice", "claims/noise-length"),
)  # fmt: skip
"""The first is the primary one, not adjusted; all others are one Holm family. To add a claim, add a row."""

TOKEN_FORM = ("token_form", "GSPO-token equals GSPO for equal advantages", "§4.3", "claims/noise-length")
"""The claim that is exact, on any stored batch: id, text, place, recipe."""
