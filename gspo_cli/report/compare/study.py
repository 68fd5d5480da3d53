"""Compare the arms of a study with its baseline, as its recipe declared before the runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from pydantic import ValidationError

from gspo_cli.config import ReportConfig
from gspo_cli.errors import GspoError
from gspo_cli.report.compare.comparison import Comparison, Refusal, judged
from gspo_cli.report.compare.preconditions import WAIVABLE, failures, unknown_seeds
from gspo_cli.report.compare.result import ArmValues, Described, StudyComparison
from gspo_cli.report.compare.scores import axis_range, collapses, curve_score, difference_stats, scores
from gspo_cli.report.runs.folders import Study
from gspo_cli.report.runs.metric_spec import BenchmarkMetric, MetricSpec, parse_metric
from gspo_cli.report.runs.pairs import Pair, Records, RunRecord, all_of, load_records, write_sources
from gspo_cli.report.runs.seeds import departure, planned_seeds
from gspo_cli.runlog.fs import write_text
from gspo_cli.runlog.strict_json import read_object
from gspo_cli.stats.paired import holm

FILE = "compare.json"
"""In the study's folder; holds the declared comparison only."""
IMPORTED = (
    "Descriptive: at least one run was imported; its start, data, budget and code are not recorded, so nothing is "
    "tested and no arm is ranked."
)


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """What the caller wants in place of what the recipe declared."""

    metric: str | None = None
    baseline: str | None = None
    treatment: str | None = None
    margin: float | None = None
    seeds: Sequence[int] | None = None
    allow: frozenset[str] = frozenset()
    """Preconditions to waive, of `WAIVABLE`."""
    grader_errors_wrong: bool = False


def compare(study: Study, request: ComparisonRequest) -> StudyComparison:
    """The comparison of the study's primary pair, with the other arms beside it.

    The pair that the recipe names is primary and not adjusted; the others are one Holm family. A comparison that the
    recipe did not declare (another metric, pair or margin, or other seeds than planned) is exploratory; only the
    declared one is written to `compare.json`.

    Errors: GspoError for an unknown metric, arm or waiver, and for corrupt files.
    """
    if unknown := sorted(request.allow - set(WAIVABLE)):
        raise GspoError(
            f"--allow {unknown[0]}", f"only {', '.join(WAIVABLE)} can be waived", "make the runs comparable instead"
        )
    declared = report_config(study)
    spec = parse_metric(request.metric or declared.metric)
    records = load_records(study, spec)
    baseline, treatments = _choose_arms(list(records), declared, request)
    if any(record.facts.run_json.get("imported") for record in all_of(records)):
        return StudyComparison(study.folder.name, _describe(spec, baseline, treatments[0], records), [])
    pairs = [Pair(baseline, other, records[baseline], records[other]) for other in treatments]
    is_the_declared_one = _is_declared(pairs[0], declared, request)
    departures = [seed_departure(study, pair, declared) for pair in pairs]
    is_declared = is_the_declared_one and not departures[0]
    results = _adjust_others(
        [_compare_pair(*one, spec, declared, is_declared, request) for one in zip(pairs, departures, strict=True)]
    )
    primary, *others = map(judged, results)
    found = StudyComparison(study.folder.name, primary, others)
    if is_the_declared_one:  # with other seeds than planned too, or an earlier result would stand there
        write_text(study.folder / FILE, json.dumps(found.to_json(), indent=1, sort_keys=True, allow_nan=False) + "\n")
        write_sources(study.folder / FILE, all_of(records), _why_unused(all_of(records), results))
    return found


def report_config(study: Study) -> ReportConfig:
    """What the study's recipe declared for the report. Errors: GspoError if its [report] table is not valid."""
    path = study.runs[0].folder / "config.json"
    config = read_object(path)
    try:
        return ReportConfig.model_validate(config.get("report") or {})
    except ValidationError as error:
        bad = error.errors(include_url=False)[0]
        raise GspoError(
            f"{path}: report.{'.'.join(map(str, bad['loc']))}: {bad['msg']}",
            "the recipe's [report] table says how the study is compared",
            "compare with the version of gspo that trained it",
        ) from error


def _choose_arms(arms: list[str], declared: ReportConfig, request: ComparisonRequest) -> tuple[str, list[str]]:
    """(the baseline, the arms compared with it: the primary one first). Errors: GspoError naming the study's arms."""
    baseline = request.baseline or declared.baseline
    primary = request.treatment or (declared.treatment if declared.treatment in arms else None)
    for option, arm in (("--baseline", baseline), ("--treatment", primary)):
        if arm is not None and arm not in arms:
            raise GspoError(f"no arm {arm!r} in the study", f"it has {', '.join(arms)}", f"{option} takes one of them")
    others = [arm for arm in sorted(arms) if arm != baseline]
    if primary == baseline or not others:
        raise GspoError(
            "nothing to compare",
            f"the study has {', '.join(arms)}, and the baseline is {baseline}",
            "train a second arm into it, or name two arms with --baseline and --treatment",
        )
    if primary is None and len(others) > 1:
        raise GspoError(
            f"no arm {declared.treatment!r} in the study, which the recipe names as the treatment",
            f"it has {', '.join(arms)}",
            f"--treatment {others[0]}",
        )
    if request.treatment:
        return baseline, [request.treatment]
    return baseline, sorted(others, key=lambda arm: arm != (primary or others[0]))


def _is_declared(primary: Pair, declared: ReportConfig, request: ComparisonRequest) -> bool:
    """Whether the recipe declared this comparison: its metric, pair and margin, and every complete pair of runs."""
    valid, _ = primary.drop_invalid()
    return (
        request.metric in (None, declared.metric)
        and request.margin in (None, declared.margin)
        and (primary.baseline, primary.treatment) == (declared.baseline, declared.treatment)
        and (request.seeds is None or set(valid.seeds) <= set(request.seeds))
    )


def seed_departure(study: Study, pair: Pair, declared: ReportConfig) -> str:
    """How the pair's seeds differ from those that the study planned."""
    valid, invalid = pair.drop_invalid()
    planned = planned_seeds(study.folder, (pair.baseline, pair.treatment))
    return departure(planned, valid.seeds, sorted({r.run.seed for r in invalid}), declared.looks)


def _look(num_seeds: int, looks: tuple[int, ...]) -> str:
    """Which of the planned looks a comparison is."""
    if not looks:
        return ""
    number = looks.index(num_seeds) + 1 if num_seeds in looks else len(looks)
    return f"Look {number} of {len(looks)}, each at 5 % / {len(looks)}."


def _compare_pair(
    pair: Pair, departure: str, spec: MetricSpec, declared: ReportConfig, is_declared: bool, request: ComparisonRequest
) -> Comparison | Refusal:
    valid, invalid = pair.drop_invalid()
    kept = valid if request.seeds is None else valid.narrow(request.seeds)
    ungraded = 0
    if request.grader_errors_wrong:
        ungraded = sum(r.answers.num_ungraded for r in kept.records if r.answers)
        kept = kept.ungraded_as_wrong()
    failed = [*unknown_seeds(kept, request.seeds or ()), *failures(kept, spec)]
    if remaining := [f for f in failed if f.check not in request.allow]:
        return Refusal(pair, spec, is_declared, remaining)
    fallen = collapses(kept, declared.collapse).among(kept.seeds)
    margin = declared.margin if request.margin is None else request.margin
    stats = difference_stats(scores(kept, spec), margin, fallen, max(1, len(declared.looks)))
    return Comparison(pair, spec, is_declared, kept, stats, declared, invalid, failed, ungraded,
                      why_exploratory=departure, look=_look(len(kept.seeds), declared.looks))  # fmt: skip


def _adjust_others(results: list[Comparison | Refusal]) -> list[Comparison | Refusal]:
    """The comparisons after the first, their tests of a difference adjusted as one family, those of equality as
    another."""
    p_t = {
        i: min(1.0, r.stats.t.p_mean * r.stats.looks)
        for i, r in enumerate(results)
        if i and isinstance(r, Comparison) and r.stats.t
    }
    p_holm = dict(zip(p_t, holm(list(p_t.values())), strict=True))
    p_equal = {i: min(1.0, r.stats.p_equal * r.stats.looks) for i, r in enumerate(results)
               if i and isinstance(r, Comparison) and r.stats.p_equal is not None}  # fmt: skip
    p_equal_holm = dict(zip(p_equal, holm(list(p_equal.values())), strict=True))
    return [
        replace(r, p_holm=p_holm.get(i), p_equal_holm=p_equal_holm.get(i)) if isinstance(r, Comparison) else r
        for i, r in enumerate(results)
    ]


def _why_unused(records: list[RunRecord], results: list[Comparison | Refusal]) -> dict[str, str]:
    """Run -> why no comparison rests on it."""
    used = {record.name for r in results if isinstance(r, Comparison) for record in r.kept.records}
    compared = {arm for r in results for arm in (r.pair.baseline, r.pair.treatment)}
    invalid_seeds = {record.run.seed for record in records if record.facts.invalid}
    reasons = {}
    for record in (record for record in records if record.name not in used):
        if record.facts.invalid:
            why = f"invalidated: {record.facts.invalid}"
        elif record.run.seed in invalid_seeds:
            why = "its partner is invalidated"
        else:
            why = "the comparison was refused" if record.run.arm in compared else "its arm was not compared"
        reasons[record.name] = why
    return reasons


def _describe(spec: MetricSpec, baseline: str, treatment: str, records: Records) -> Described:
    """For studies with imported runs: every arm's values with mean and spread; no test, no interval, no order."""
    values = {arm: _curve_scores(spec, list(by_seed.values())) for arm, by_seed in sorted(records.items())}
    steps = {str(r.facts.run_json.get("step_is", "rollout batch")) for r in all_of(records)}
    return Described(
        verdict="descriptive", metric=spec.text, baseline=baseline, treatment=treatment, sentence=IMPORTED,
        arms=[ArmValues(arm, by_seed, _mean_text(by_seed)) for arm, by_seed in values.items()],
        notes=[f"A step is {' in some runs, '.join(sorted(steps))}."],
    )  # fmt: skip


def _curve_scores(spec: MetricSpec, records: list[RunRecord]) -> dict[int, float]:
    """Seed -> score, of the runs that logged the metric."""
    if isinstance(spec, BenchmarkMetric):
        return {}
    known = [r for r in records if r.curves and r.curves.xy(spec.metric, spec.budget)]
    ends = axis_range(known, spec) if known else (0.0, 0.0)
    return {r.run.seed: curve_score(r, spec, ends) for r in known}


def _mean_text(by_seed: dict[int, float]) -> str:
    if not by_seed:
        return "no value"
    values = np.array(list(by_seed.values()))
    spread = f", standard deviation {values.std(ddof=1):.4g}" if len(values) > 1 else ""
    each = ", ".join(f"seed {seed}: {value:.4g}" for seed, value in by_seed.items())
    return f"mean {values.mean():.4g}{spread} over {len(values)} runs ({each})"
