"""The claims of the GSPO paper (arXiv 2507.18071) and of SAPO's (2511.20347), their arms, and what decides each."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from gspo_cli.report.compare.verdict import Evidence, judge, num_pairs, within_margin
from gspo_cli.report.runs.pairs import Pair, Records, RunRecord, all_of
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
PAPER_CLIP_RANGES = {"grpo": (0.2, 0.27), "gspo": (3e-4, 4e-4)}
"""Of the paper's experiments (§5.1)."""


def verdict_of(rule: Rule, e: Evidence, second: Evidence | None = None) -> ClaimVerdict:
    """The verdict of one claim. A suggestive result is inconclusive, as is any with fewer than `FEWEST` seeds.

    `e` = treatment minus baseline, with the p-values of all its tests adjusted; for `inside`, the value minus the
    band's middle, with half its width as margin. `second` = for `ahead_twice`, the same treatment against a second
    baseline.
    """
    c, num_runs = e.collapses, num_pairs(e)
    if num_runs < FEWEST:
        return "inconclusive"
    ahead, behind, equal = _is_ahead(e), _is_ahead(replace(e, effect=-e.effect)), judge(e, "neither") == "equal"
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
        "ahead_twice": (ahead and second is not None and _is_ahead(second), behind),
    }
    supported, contradicted = rules[rule]
    return "supported" if supported else "contradicted" if contradicted else "inconclusive"


def _is_ahead(e: Evidence) -> bool:
    """Whether the treatment's number is shown to be larger."""
    return judge(e, "neither") == "different" and e.effect > 0


def pairs_of(claim: Claim, records: Records) -> list[Pair]:
    """The two arms of a claim in a study; for `clip_range`, both algorithms without Routing Replay at their narrowest
    and at their widest range. Empty if the study lacks an arm, or a second range."""
    if claim.number == "clip_range":
        left, right = (_arms_by_range(spec.algorithm, records) for spec in (claim.baseline, claim.treatment))
        arms = [(left[at], right[at]) for at in (0, -1) if min(len(left), len(right)) > 1]
    else:
        baseline, treatment = (_find_arm(spec, records) for spec in (claim.baseline, claim.treatment))
        arms = [(baseline, treatment)] if baseline and treatment else []
    return [Pair(a, b, records[a], records[b]) for a, b in arms]


def _find_arm(spec: ArmSpec, records: Records) -> str | None:
    """The label of an arm: the plain one of its algorithm first, then the shortest."""
    if spec.replay == "paper":
        replayed = _find_arm(replace(spec, replay="r2"), records) if any(map(is_moe, all_of(records))) else None
        return replayed or _find_arm(replace(spec, replay="none"), records)
    found = [arm for arm in records if _spec_of(_config(records, arm)) == spec]
    return min(found, key=lambda arm: (arm != spec.algorithm, len(arm), arm), default=None)


def _arms_by_range(algorithm: str, records: Records) -> list[str]:
    """One arm per clip range, of all arms that differ from the algorithm's plain one only in the range; narrowest
    first."""
    by_range: dict[tuple[float, float], str] = {}
    for arm in sorted(records):
        config = _config(records, arm)
        low, high = config.get("algo.clip.low"), config.get("algo.clip.high")
        if _spec_of(config) == ArmSpec(algorithm) and isinstance(low, float) and isinstance(high, float):
            by_range.setdefault((low, high), arm)
    return [by_range[ends] for ends in sorted(by_range)]


def _config(records: Records, arm: str) -> dict[str, Any]:
    return next(iter(records[arm].values())).facts.config_flat


def _spec_of(config: dict[str, Any]) -> ArmSpec:
    replay, old_log_probs = config.get("algo.replay", "none"), config.get("algo.old_log_probs", "trainer")
    return ArmSpec(str(config.get("algo.name")), replay, old_log_probs)


def is_moe(record: RunRecord) -> bool:
    """Whether the run trained a mixture of experts, as far as its configuration shows."""
    config = record.facts.config_flat
    return config.get("model.tiny.kind") == "qwen3_moe" or "A3B" in str(config.get("model.path"))


def is_papers_model(record: RunRecord) -> bool:
    """Whether the run trained the paper's model."""
    return "Qwen3-30B-A3B" in str(record.facts.config_flat.get("model.path"))


def differences_from_paper(pair: Pair) -> list[str]:
    """How the runs differ from the paper's setting, as far as their configuration shows."""
    first = pair.records[0]
    config, notes = first.facts.config_flat, []
    if not is_papers_model(first) and config.get("model.tiny.layers"):
        experts = f", top-{config['model.tiny.top_k']}" if is_moe(first) else ", no experts"
        notes.append(f"tiny model of {config['model.tiny.layers']} layers{experts} (paper: 48 layers, top-8)")
    elif not is_papers_model(first):
        notes.append(f"model {config.get('model.path')} (paper: Qwen3-30B-A3B)")
    if (parts := config.get("algo.minibatches") or config.get("train.minibatches")) != 4:
        notes.append(f"{parts} mini-batches (paper: 4)")
    for arm, side in ((pair.baseline, pair.left), (pair.treatment, pair.right)):
        table = next(iter(side.values())).facts.config_flat
        name, clip = str(table.get("algo.name")), (table.get("algo.clip.low"), table.get("algo.clip.high"))
        paper = PAPER_CLIP_RANGES.get(name, clip)
        if clip != paper:
            notes.append(f"{arm}: clip range {clip[0]}/{clip[1]} (paper: {paper[0]}/{paper[1]})")
        if name == "grpo" and is_moe(first) and table.get("algo.replay", "none") == "none":
            notes.append(f"{arm}: no Routing Replay (the paper's baseline has it)")
    return list(dict.fromkeys(notes))
