"""Test the papers' claims on a study: each is supported, contradicted, inconclusive or not tested."""

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gspo_cli.config import ReportConfig
from gspo_cli.report.claims.claims import (
    CLAIMS,
    TOKEN_FORM,
    Claim,
    differences_from_paper,
    is_moe,
    is_papers_model,
    pairs_of,
    verdict_of,
)
from gspo_cli.report.compare.preconditions import failures
from gspo_cli.report.compare.scores import DifferenceStats, Scores, below_start, collapses, difference_stats, scores
from gspo_cli.report.compare.settings import conditions, settings_of
from gspo_cli.report.compare.study import report_config, seed_departure
from gspo_cli.report.compare.verdict import Collapses, Evidence, within_margin
from gspo_cli.report.runs.folders import Study
from gspo_cli.report.runs.metric_spec import BenchmarkMetric, MetricSpec, parse_metric
from gspo_cli.report.runs.pairs import Pair, Records, RunRecord, all_of, load_records, with_answers, write_sources
from gspo_cli.report.runs.reader import corrupt
from gspo_cli.runlog.checksums import sha256_of
from gspo_cli.runlog.fs import write_text
from gspo_cli.runlog.strict_json import read_object
from gspo_cli.stats.paired import FEWEST, holm
from gspo_cli.stats.problems import Array

FILE = "claims.json"
CLIP, CHURN = "clip/token_frac", "moe/slot_churn_step"
LOGGED = {"clip_ratio": CLIP, "clip_range": CLIP, "churn": CHURN}
"""A claim's own number -> the metric that it is computed from."""
LABELS = {
    "clip_ratio": "log10 of the ratio of clip fractions",
    "clip_range": "log10 of the ratio of clip fractions",
    "noise_slope": "slope of log gradient noise on log length",
}
TASKS = ("arithmetic", "gsm8k", "math", "code")
"""What the papers train on, and the recipes of the claims."""
FEWEST_CLIPPED = 100
"""Clipped tokens of the baseline over all runs below which their number is noise."""
PLACE = "rollouts/batch-report/batch.json"
COMMAND = (
    "gspo report batch RUN/rollouts/step_000001.parquet --model START --against RUN/checkpoints/step-000001/model, for "
    "every run (START: `start_model` in its run.json)"
)
EXACT = 1e-12
"""Largest difference at which two float64 numbers count as the same."""

BatchReport = tuple[int, dict[str, Any]]
"""A run's seed, and the numbers measured on its stored batch."""


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """A claim with what the study's runs show."""

    claim: Claim
    pair: Pair | None = None
    stats: DifferenceStats | None = None
    collapses: Collapses | None = None
    shift: float = 0.0
    """Middle of the band, for `inside`: it was subtracted from the value."""
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
    """The row of every claim that concerns the study, ready for JSON; also written to `claims.json` with its side file.

    Errors: GspoError for corrupt files, or a study whose [report] table is not valid.
    """
    declared = report_config(study)
    specs = [_metric_to_check(claim) for claim in CLAIMS if claim.number != "noise_slope"]
    scores = {spec.metric for spec in specs if isinstance(spec, BenchmarkMetric)}
    records = load_records(study, also={"rollout": {"reward/mean"}, "step": {CLIP, CHURN}, "eval": scores})
    results = [_evaluate(claim, study, records, declared) for claim in CLAIMS]
    rows = [_to_dict(result, p) for result, p in zip(results, _adjusted_p(results), strict=True)]
    rows = [row for row in (*rows, _token_form(_batch_reports(study))) if _concerns(row, records)]
    found = {"study": study.folder.name, "rows": rows}
    write_text(study.folder / FILE, json.dumps(found, indent=1, sort_keys=True, allow_nan=False) + "\n")
    used = {r.name for result in results if result.stats and result.pair for r in result.pair.records}
    unused = {r.name: "no claim tested rests on it" for r in all_of(records) if r.name not in used}
    write_sources(study.folder / FILE, all_of(records), unused)
    return found


def _concerns(row: dict[str, Any], records: Records) -> bool:
    """Whether a claim has to do with the study: not if it trains on another task than the claims' own, nor if a claim
    that it cannot test is about a second arm."""
    config = all_of(records)[0].facts.config_flat
    return config.get("task.name") in TASKS and (len(records) > 1 or row["verdict"] != "not_tested")


def _evaluate(claim: Claim, study: Study, records: Records, declared: ReportConfig) -> ClaimResult:
    """The statistics of one claim, or why there are none."""
    train = f"gspo train {claim.recipe} --seeds 0-7"
    if claim.number == "noise_slope":
        return _evaluate_batches(claim, study, f"{train}, then {COMMAND}")
    spec = _metric_to_check(claim)
    if isinstance(spec, BenchmarkMetric):
        records = with_answers(records, spec.bench)
    pairs = pairs_of(claim, records)
    if not pairs:
        return ClaimResult(claim, not_tested="the study has no such arms", decide=train)
    pair, own = pairs[0], claim.number in LOGGED
    if claim.needs_experts and not is_moe(pair.records[0]):
        return ClaimResult(claim, pair, not_tested="the model has no experts", decide=train)
    if isinstance(spec, BenchmarkMetric) and not any(r.answers for r in pair.records):
        more = f"--contests {spec.bench}=FILE" if spec.kind == "elo" else f"--samples {spec.k}"
        how = f"gspo eval benchmarks RUN --bench {spec.bench} {more}, for every run"
        return ClaimResult(claim, pair, not_tested="no run was evaluated on it", decide=how)
    valid = [one.drop_invalid()[0] for one in pairs]
    if claim.number != "churn" and (failed := [f for one in valid for f in failures(one, spec)]):
        checks = ", ".join(dict.fromkeys(f.check for f in failed))
        return ClaimResult(claim, pair, not_tested=f"the runs are not comparable ({checks})", decide=failed[0].do)
    seeds = set.intersection(*(set(one.seeds) for one in valid))
    kept, *wide = (one.narrow(seeds) for one in valid)
    if LOGGED.get(claim.number) == CLIP and sum(_clipped(kept.left[seed])[0] for seed in seeds) < FEWEST_CLIPPED:
        return ClaimResult(claim, kept, decide="longer runs: the baseline clipped fewer than 100 tokens")
    shift = sum(claim.band) / 2 if claim.band else 0.0
    found = _scores(claim, kept, wide, spec, shift)
    if not len(found.treatment_S):
        return ClaimResult(claim, kept, not_tested="no run made an update", decide=train)
    fallen = None if own else collapses(kept, declared.collapse)
    margin = (claim.band[1] - claim.band[0]) / 2 if claim.band else declared.margin
    looks = max(1, len(declared.looks))
    stats = difference_stats(found, margin, fallen.among(kept.seeds) if fallen else None, looks)
    if claim.number == "churn" and not is_papers_model(kept.records[0]):
        why = f"another model than the paper's: {float(stats.D_S.mean()) + shift:.2%} here"
        how = "the paper's model: model.path = Qwen/Qwen3-30B-A3B-Base"
        return ClaimResult(claim, kept, not_tested=why, decide=how)
    settings, same = settings_of(kept, declared), {arm: arm for arm in (kept.baseline, kept.treatment)}
    return ClaimResult(
        claim, kept, stats, fallen, shift, unequal="" if own else settings.unequal,
        conditions="" if claim.baseline == claim.treatment else conditions(settings, same),
        exploratory=seed_departure(study, pair, declared),
    )  # fmt: skip


def _evaluate_batches(claim: Claim, study: Study, how: str) -> ClaimResult:
    """The claim about gradient noise and length."""
    found = _noise_slopes(_batch_reports(study))
    if isinstance(found, str):
        return ClaimResult(claim, not_tested=found, decide=how)
    seeds, *both = found
    gspo, reinforce = (difference_stats(scores, None) for scores in both)
    return ClaimResult(claim, stats=gspo, second=reinforce, seeds=tuple(seeds))


def _metric_to_check(claim: Claim) -> MetricSpec:
    """The metric whose preconditions must hold."""
    return parse_metric(f"{LOGGED[claim.number]}:area@steps" if claim.number in LOGGED else claim.number)


def _scores(claim: Claim, kept: Pair, wide: list[Pair], spec: MetricSpec, shift: float) -> Scores:
    """Both arms' numbers; their difference is the claim's value minus `shift`. `wide` = for `clip_range`, the pair at
    the widest ranges."""
    if claim.number == "churn":
        churn = [r.curves.values[CHURN] for s in kept.seeds if (r := kept.left[s]).curves]
        churn_S = np.array([values.mean() for values in churn if len(values)])  # without runs that made no update
        return Scores(np.full(len(churn_S), shift), churn_S)
    if claim.number not in LOGGED:
        return scores(kept, spec)
    a_S, b_S = _log_clip(kept)
    if not wide:
        return Scores(a_S + shift, b_S)
    c_S, d_S = _log_clip(wide[0])
    return Scores(b_S - a_S, d_S - c_S)


def _log_clip(pair: Pair) -> tuple[Array, Array]:
    """log10 clip fractions of both arms, each [S]; finite even without a single clipped token."""
    counts_S2 = (np.array([_clipped(side[seed]) for seed in pair.seeds]) for side in (pair.left, pair.right))
    left_S, right_S = (np.log10((c_S2[:, 0] + 0.5) / (c_S2[:, 1] + 1)) for c_S2 in counts_S2)
    return left_S, right_S


def _clipped(record: RunRecord) -> tuple[float, float]:
    """(clipped tokens, all trained tokens) of a run, over its whole length."""
    assert record.curves is not None
    shares, counts = record.curves.values[CLIP], record.curves.counts[CLIP]
    return float((shares * counts).sum()), float(counts.sum())


def _batch_reports(study: Study) -> list[BatchReport]:
    """The reports of the study's runs that have one.

    Errors: GspoError (exit code STORAGE) for a report that does not belong to the batch beside it.
    """
    reports = []
    for run in study.runs:
        path = run.folder / PLACE
        if path.is_file():
            numbers = read_object(path)
            batch = path.parent.parent / Path(str(numbers.get("rollout"))).name
            if not batch.is_file() or sha256_of(batch) != numbers.get("rollout_sha256"):
                raise corrupt(str(path), f"it was not made from {batch.name} as that file is now")
            reports.append((run.seed, numbers))
    return reports


def _noise_slopes(reports: list[BatchReport]) -> tuple[list[int], Scores, Scores] | str:
    """(seeds, GRPO's slope against GSPO's, GRPO's against REINFORCE's), runs of a seed averaged; or why there is none.

    A slope is b of gradient noise ~ length^b. All three of a batch come from the same responses at the same
    parameters, so they are perfectly paired.
    """
    by_seed: dict[int, list[dict[str, float]]] = defaultdict(list)
    for seed, numbers in reports:
        slopes = (numbers.get("length_noise") or {}).get("slopes") or {}
        if slopes and None not in slopes.values():
            by_seed[seed].append(slopes)
    if not by_seed:
        return "no run has a stored batch measured against a later policy"
    if len({numbers["rollout_sha256"] for _, numbers in reports}) < len(reports):
        return "one batch was measured for two runs"
    if len({numbers["model_sha256"] for _, numbers in reports}) > 1:
        return "the batches were sampled by different policies"
    seeds = sorted(by_seed)
    grpo_S, gspo_S, reinforce_S = (
        np.array([np.mean([slopes[name] for slopes in by_seed[seed]]) for seed in seeds])
        for name in ("grpo", "gspo", "reinforce")
    )
    return seeds, Scores(gspo_S, grpo_S), Scores(reinforce_S, grpo_S)


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
                                     "differs": differences_from_paper(pair)}  # fmt: skip
    if result.stats is None:
        verdict = "not_tested" if result.not_tested else "inconclusive"
        return head | sides | {"verdict": verdict, "why": result.not_tested or result.decide, "decide": result.decide}
    fallen = result.collapses and replace(result.collapses, p=p.get("collapses", result.collapses.p))
    evidence = result.stats.evidence(fallen, unequal=result.unequal)
    evidence = replace(evidence, p_t=p.get("t", evidence.p_t), p_equal=p.get("equal", evidence.p_equal))
    second = None
    if result.second is not None:
        second = result.second.evidence()
        second = replace(second, p_t=p.get("t_second", second.p_t))
        sides = {"baseline": "gspo", "treatment": "grpo", "differs": []}
        head["second"] = {"baseline": "reinforce", "value": second.effect, "ci": second.ci, "p_exact": second.p_exact}
    verdict = verdict_of(claim.rule, evidence, second)
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


def _token_form(reports: list[BatchReport]) -> dict[str, Any]:
    """The row of the exact claim, ready for JSON."""
    name, text, place, recipe = TOKEN_FORM
    head = {"id": name, "claim": text, "place": place, "metric": "token_form", "recipe": recipe, "primary": False}
    forms = [numbers["token_form"] for _, numbers in reports if "token_form" in numbers]
    if not forms:
        why = "exact, but no run of the study has a measured batch"
        return head | {"verdict": "not_tested", "why": why, "decide": COMMAND}
    loss, gradient = (max(form[key] for form in forms) for key in ("loss", "gradient"))
    equal = all(form["masks_equal"] for form in forms)
    holds = equal and max(loss, gradient) <= EXACT
    why = (
        f"exact, no statistics: on {len(forms)} stored batches the largest difference of the loss is {loss:.2g}, "
        f"of the gradient {gradient:.2g} of its largest entry; clip masks {'equal' if equal else 'differ'}"
    )
    largest = {"loss": loss, "gradient": gradient, "masks_equal": equal, "batches": len(forms)}
    return head | {"verdict": "supported" if holds else "contradicted", "why": why, "decide": "", "largest": largest}


def found_text(row: dict[str, Any]) -> str:
    """The number behind a row's verdict in one line."""
    factor, unit = (100, " points") if row["points"] else (1, "")
    text = f"{LABELS.get(row['metric'], row['metric'])}: {row['treatment']} against {row['baseline']} "
    text += f"{factor * row['value']:+.3g}{unit}{_ends(row['ci'], factor)}"
    if other := row.get("second"):
        text += f"; against {other['baseline']} {other['value']:+.3g}{_ends(other['ci'])}"
    if row["band"]:
        text += f", claimed within [{row['band'][0]:g}, {row['band'][1]:g}]"
    if fallen := row["collapses"]:
        text += f"; collapsed {len(fallen['treatment'])} against {len(fallen['baseline'])} runs"
    if sunk := row["below_start"]:
        text += f", ended below their start {len(sunk['treatment'])} against {len(sunk['baseline'])}"
    tests = ", ".join(f"{name} {p:.3g}" for name, p in row["p_adjusted"].items())
    return f"{text}; N = {row['n']}; p: {tests or 'n/a'}" + ("" if row["primary"] or not tests else " (Holm)")


def _ends(ci: list[float] | None, factor: float = 1) -> str:
    return "" if ci is None else f" [{factor * ci[0]:.3g}, {factor * ci[1]:.3g}]"
