"""Test the papers' claims on a study: each is supported, contradicted, inconclusive or not tested."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gspo_cli.config import ReportConfig
from gspo_cli.report.claims import arms
from gspo_cli.report.claims.arms import COMMAND, batch_reports, noise_slopes, token_form
from gspo_cli.report.claims.claims import CLAIMS, Claim, verdict_of
from gspo_cli.report.compare.preconditions import failures
from gspo_cli.report.compare.scores import DifferenceStats, Scores, below_start, collapses, difference_stats, scores
from gspo_cli.report.compare.settings import conditions, settings_of
from gspo_cli.report.compare.study import report_config, seed_departure
from gspo_cli.report.compare.verdict import Collapses, Evidence, within_margin
from gspo_cli.report.runs.folders import Study
from gspo_cli.report.runs.metric_spec import BenchmarkMetric, MetricSpec, better_of, parse_metric
from gspo_cli.report.runs.pairs import Pair, Records, all_of, load_records, with_answers, write_sources
from gspo_cli.runlog.fs import write_text
from gspo_cli.stats.paired import FEWEST, holm

FILE = "claims.json"
CURVES = {"rollout": {"reward/mean"}, "step": {arms.CLIP, arms.CHURN}}


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """A claim with what the study's runs show."""

    claim: Claim
    pair: Pair | None = None
    stats: DifferenceStats | None = None
    collapses: Collapses | None = None
    shift: float = 0.0
    """Middle of the band, for `inside`: it was subtracted from the value."""
    better: str = "higher"
    not_tested: str = ""
    """Why, if it was not."""
    decide: str = ""
    """What would decide it, unless that is a matter of seeds."""
    second: DifferenceStats | None = None
    """For `ahead_twice`: against the second baseline."""
    seeds: tuple[int, ...] = ()
    """Where it rests on stored batches instead of pairs of runs."""
    unequal: str = ""
    """Why the arms did not have an equal chance, for a claim that one of them is better."""
    conditions: str = ""
    """The arms' settings and tuning."""
    exploratory: str = ""
    """How the seeds differ from those that the study planned."""


def claims(study: Study) -> dict[str, Any]:
    """Every claim's row, ready for JSON; also written to `claims.json` with its side file.

    Errors: GspoError for corrupt files, or a study whose [report] table is not valid.
    """
    declared = report_config(study)
    scores = {
        spec.metric
        for spec in (_metric_to_check(claim) for claim in CLAIMS if claim.number != "noise_slope")
        if isinstance(spec, BenchmarkMetric)
    }
    records = load_records(study, also=CURVES | {"eval": scores})
    results = [_evaluate(claim, study, records, declared) for claim in CLAIMS]
    rows = [_to_dict(result, p) for result, p in zip(results, _adjusted_p(results), strict=True)]
    found = {"study": study.folder.name, "rows": [*rows, token_form(batch_reports(study))]}
    write_text(study.folder / FILE, json.dumps(found, indent=1, sort_keys=True, allow_nan=False) + "\n")
    used = {r.name for result in results if result.stats and result.pair for r in result.pair.records}
    unused = {r.name: "no claim tested rests on it" for r in all_of(records) if r.name not in used}
    write_sources(study.folder / FILE, all_of(records), unused)
    return found


def _evaluate(claim: Claim, study: Study, records: Records, declared: ReportConfig) -> ClaimResult:
    """The statistics of one claim, or why there are none."""
    train = f"gspo train {claim.recipe} --seeds 0-7"
    if claim.number == "noise_slope":
        return _evaluate_batches(claim, study, f"{train}, then {COMMAND}")
    spec = _metric_to_check(claim)
    if isinstance(spec, BenchmarkMetric):
        records = with_answers(records, spec.bench)
    ranges = arms.range_pairs(claim, records) if claim.number == "clip_range" else None
    pair = ranges[0] if ranges else arms.pair_of(claim, records)
    if pair is None or (claim.number == "clip_range" and ranges is None):
        return ClaimResult(claim, not_tested="the study has no such arms", decide=train)
    if claim.needs_experts and not arms.is_moe(pair.records[0]):
        return ClaimResult(claim, pair, not_tested="the model has no experts", decide=train)
    if isinstance(spec, BenchmarkMetric) and not any(r.answers for r in pair.records):
        more = f"--contests {spec.bench}=FILE" if spec.kind == "elo" else f"--samples {spec.k}"
        how = f"gspo eval benchmarks RUN --bench {spec.bench} {more}, for every run"
        return ClaimResult(claim, pair, not_tested="no run was evaluated on it", decide=how)
    kept, _ = pair.drop_invalid()
    if claim.number != "churn":
        both = [kept, ranges[1].drop_invalid()[0]] if ranges else [kept]
        if failed := [f for one in both for f in failures(one, spec)]:
            checks = ", ".join(dict.fromkeys(f.check for f in failed))
            return ClaimResult(claim, pair, not_tested=f"the runs are not comparable ({checks})", decide=failed[0].do)
    if claim.number in ("clip_ratio", "clip_range") and arms.too_few_clipped(kept):
        return ClaimResult(claim, kept, decide="longer runs: the baseline clipped fewer than 100 tokens")
    shift = sum(claim.band) / 2 if claim.band else 0.0
    found = _scores(claim, kept, ranges, spec, shift)
    if not len(found.treatment_S):
        return ClaimResult(claim, kept, not_tested="no run made an update", decide=train)
    fallen = None if claim.band or claim.number == "clip_ratio" else collapses(kept, declared.collapse)
    margin = (claim.band[1] - claim.band[0]) / 2 if claim.band else declared.margin
    looks = max(1, len(declared.looks))
    stats = difference_stats(found, margin, fallen.among(kept.seeds) if fallen else None, looks)
    if claim.number == "churn" and "Qwen3-30B-A3B" not in str(kept.records[0].facts.config_flat.get("model.path")):
        share = f"{float(stats.D_S.mean()) + shift:.2%}"
        return ClaimResult(claim, kept, not_tested=f"another model than the paper's: {share} here",
                           decide="the paper's model: model.path = Qwen/Qwen3-30B-A3B-Base")  # fmt: skip
    better = "neither" if claim.band else "higher" if claim.number == "clip_ratio" else better_of(spec)
    settings, same = settings_of(kept, declared), {arm: arm for arm in (kept.baseline, kept.treatment)}
    return ClaimResult(
        claim, kept, stats, fallen, shift, better,
        unequal="" if claim.band or claim.number == "clip_ratio" else settings.unequal,
        conditions="" if claim.baseline == claim.treatment else conditions(settings, same),
        exploratory=seed_departure(study, pair, declared),
    )  # fmt: skip


def _evaluate_batches(claim: Claim, study: Study, how: str) -> ClaimResult:
    """The claim about gradient noise and length."""
    found = noise_slopes(batch_reports(study))
    if isinstance(found, str):
        return ClaimResult(claim, not_tested=found, decide=how)
    seeds, gspo, reinforce = found
    return ClaimResult(
        claim, stats=difference_stats(gspo, None), second=difference_stats(reinforce, None), seeds=tuple(seeds)
    )


def _metric_to_check(claim: Claim) -> MetricSpec:
    """The metric whose preconditions must hold."""
    logged = {"clip_ratio": arms.CLIP, "clip_range": arms.CLIP, "churn": arms.CHURN}
    return parse_metric(f"{logged[claim.number]}:area@steps" if claim.number in logged else claim.number)


def _scores(claim: Claim, kept: Pair, ranges: tuple[Pair, Pair] | None, spec: MetricSpec, shift: float) -> Scores:
    """Both arms' numbers; their difference is the claim's value minus `shift`."""
    if claim.number == "churn":
        churn_S = arms.mean_churn(kept)
        return Scores(np.full(len(churn_S), shift), churn_S)
    if claim.number == "clip_range" and ranges:
        (a, b), (c, d) = arms.clip_ratio(kept), arms.clip_ratio(ranges[1].narrow(kept.seeds))
        return Scores(b - a, d - c)
    if claim.number == "clip_ratio":
        a_S, b_S = arms.clip_ratio(kept)
        return Scores(a_S + shift, b_S)
    return scores(kept, spec)


def _adjusted_p(results: list[ClaimResult]) -> list[dict[str, float]]:
    """Every p on which a verdict may rest, adjusted: those of all claims but the first are one Holm family."""
    p_values = [_p_values(result) for result in results]
    family = holm({(i, name): p for i, own in enumerate(p_values) if i for name, p in own.items()})
    return [{name: family.get((i, name), p) for name, p in own.items()} for i, own in enumerate(p_values)]


def _p_values(result: ClaimResult) -> dict[str, float]:
    rule, stats, found = result.claim.rule, result.stats, dict[str, float]()
    if stats and stats.t and rule != "fewer_collapses":
        if rule != "inside":
            found["t"] = stats.t.p_mean
        if result.second and result.second.t:
            found["t_second"] = result.second.t.p_mean
        if stats.p_equal is not None and rule in ("inside", "equal", "needed", "not_ahead_needed"):
            found["equal"] = stats.p_equal
    if result.collapses and ("collapses" in rule or rule == "needed"):
        found["collapses"] = result.collapses.p
    looks = stats.looks if stats else 1
    return {name: min(1.0, looks * p) for name, p in found.items()}


def _to_dict(result: ClaimResult, p: dict[str, float]) -> dict[str, Any]:
    claim, pair, shift = result.claim, result.pair, result.shift
    head: dict[str, Any] = {"id": claim.id, "claim": claim.text, "place": claim.place, "metric": claim.number,
                            "recipe": claim.recipe, "primary": claim is CLAIMS[0]}  # fmt: skip
    sides = {} if pair is None else {"baseline": pair.baseline, "treatment": pair.treatment,
                                     "differs": arms.differences_from_paper(pair)}  # fmt: skip
    if result.stats is None:
        verdict = "not_tested" if result.not_tested else "inconclusive"
        return head | sides | {"verdict": verdict, "why": result.not_tested or result.decide, "decide": result.decide}
    fallen = result.collapses and replace(result.collapses, p=p.get("collapses", result.collapses.p))
    evidence = result.stats.evidence(fallen, unequal=result.unequal, p_t=p.get("t"), p_equal=p.get("equal"))
    second = None
    if result.second is not None:
        second = result.second.evidence(p_t=p.get("t_second"))
        sides = {"baseline": "gspo", "treatment": "grpo", "differs": []}
        head["second"] = {"baseline": "reinforce", "value": second.effect, "ci": second.ci, "p_exact": second.p_exact}
    verdict = verdict_of(claim.rule, evidence, result.better, second)
    if result.unequal and verdict in ("supported", "contradicted"):
        verdict = "inconclusive"  # fewer collapses of an arm that was tuned alone show nothing
    return head | sides | {
        "verdict": verdict,
        "n": evidence.n,
        "seeds": pair.seeds if pair else list(result.seeds),
        "value": evidence.effect + shift,
        "ci": evidence.ci and [end + shift for end in evidence.ci],
        "points": result.stats.scores.points,
        "band": claim.band,
        "margin": None if claim.band else evidence.margin,
        "p_adjusted": p,
        "p_exact": evidence.p_exact,
        "collapses": fallen and {key: getattr(fallen, key) for key in ("baseline", "treatment", "p")},
        "below_start": asdict(below_start(pair)) if fallen and pair else None,
        "failed": [r.name for r in pair.records if r.facts.status == "failed"] if pair else [],
        "conditions": result.conditions,
        "exploratory": result.exploratory,
        "why": "",
        "decide": "" if verdict != "inconclusive" else _what_would_decide(claim, evidence),
    }  # fmt: skip


def _what_would_decide(claim: Claim, e: Evidence) -> str:
    """What would decide an inconclusive claim."""
    if e.unequal:
        return f"equal tuning ({e.unequal}): gspo train --grid KEY=VALUES for both arms, then --tuned STUDY"
    if e.n < FEWEST:
        return f"at least {FEWEST} seeds without a collapse, better 8; there are {e.n}"
    if claim.rule == "fewer_collapses":
        return "a setting under which some runs collapse: a higher learning rate, more mini-batches, longer runs"
    if within_margin(e):
        return "the arms are equal within the margin: more seeds will hardly show a difference"
    if e.seeds_needed is None:
        return "more seeds"
    return f"about {max(e.seeds_needed, e.n + 1)} seeds would detect the margin"


def found_text(row: dict[str, Any]) -> str:
    """The number behind a row's verdict in one line."""
    factor, unit = (100, " points") if row["points"] else (1, "")
    ends = "" if row["ci"] is None else f" [{factor * row['ci'][0]:.3g}, {factor * row['ci'][1]:.3g}]"
    text = f"{row['metric']}: {row['treatment']} against {row['baseline']} {factor * row['value']:+.3g}{unit}{ends}"
    if row["metric"] in ("clip_ratio", "clip_range"):
        text = text.replace(row["metric"], "log10 of the ratio of clip fractions", 1)
    if row["metric"] == "noise_slope":
        other = row["second"]
        text = text.replace("noise_slope", "slope of log gradient noise on log length", 1)
        text += f"; against {other['baseline']} {other['value']:+.3g}"
        text += "" if other["ci"] is None else f" [{other['ci'][0]:.3g}, {other['ci'][1]:.3g}]"
    if row["band"]:
        text += f", claimed within [{row['band'][0]:g}, {row['band'][1]:g}]"
    fallen = row["collapses"]
    if fallen:
        text += f"; collapsed {len(fallen['treatment'])} against {len(fallen['baseline'])} runs"
        if sunk := row["below_start"]:
            text += f", ended below their start {len(sunk['treatment'])} against {len(sunk['baseline'])}"
    tests = ", ".join(f"{name} {p:.3g}" for name, p in row["p_adjusted"].items())
    return f"{text}; N = {row['n']}; p: {tests or 'n/a'}" + ("" if row["primary"] or not tests else " (Holm)")
