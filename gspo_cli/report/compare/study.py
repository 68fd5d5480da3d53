"""Compare the arms of a study with its baseline, as its recipe declared before the runs."""

import json
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from pydantic import ValidationError

from gspo_cli import __version__
from gspo_cli.config import ReportConfig
from gspo_cli.errors import ExitCode, GspoError, quoted
from gspo_cli.report.compare.imported import ASSUMABLE, needed, unstated, why_not_judged, with_assumptions
from gspo_cli.report.compare.learning_curves import learning_curves
from gspo_cli.report.compare.preconditions import CHECKS, OF_IMPORTED, WAIVABLE, failures
from gspo_cli.report.compare.result import Compared, Described, Found, StudyComparison, Table, adjust, sensitivity
from gspo_cli.report.compare.scores import (
    DifferenceStats,
    below_start,
    collapses,
    curves_apart_from,
    difference_stats,
    logged_scores,
    scores,
)
from gspo_cli.report.compare.settings import conditions, settings_of
from gspo_cli.report.compare.verdict import Wording, refusal
from gspo_cli.report.runs.facts import command_for
from gspo_cli.report.runs.folders import Study
from gspo_cli.report.runs.metric_spec import Axis, BenchmarkMetric, MetricSpec, better_of, parse_metric, unit_of
from gspo_cli.report.runs.pairs import Pair, Records, RunRecord, all_of, load_records, write_sources
from gspo_cli.report.runs.reader import corrupt
from gspo_cli.report.runs.seeds import departure, not_begun, planned_seeds
from gspo_cli.runlog.fs import write_text
from gspo_cli.runlog.strict_json import read_object
from gspo_cli.stats.starts import StartShare, start_share

FILE = "compare.json"
"""In the study's folder; holds the declared comparison only."""
AXES: tuple[Axis, ...] = ("steps", "tokens", "seconds")
CONTAMINATION = {"aime24": "AIME'24 has been public since early 2024; base models may have seen it."}
"""What readers of a benchmark's score must know."""


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """What the caller wants in place of what the recipe declared, or of a file's first run with all others."""

    metric: str | None = None
    baseline: str | None = None
    treatment: str | None = None
    margin: float | None = None
    seeds: Sequence[int] | None = None
    allow: frozenset[str] = frozenset()
    """Preconditions to waive, of `WAIVABLE`."""
    grader_errors_wrong: bool = False
    assume: frozenset[str] = frozenset()
    """What the user states about imported runs, of `ASSUMABLE`."""
    unpaired: bool = False
    """Imported runs of one seed share nothing."""


def compare(study: Study, request: ComparisonRequest, keep: bool = True) -> StudyComparison:
    """The comparison of the study's primary pair, with the other arms beside it.

    The pair that the recipe names is primary and not adjusted; the others are one Holm family. A comparison that the
    recipe did not declare (another metric, pair or margin, or other seeds than planned) is exploratory; only the
    declared one is written to `compare.json`, and that only if it is to be kept.

    Errors: GspoError for an unknown metric, arm or waiver, a single arm, and for corrupt files.
    """
    if unknown := sorted(request.allow - set(WAIVABLE)):
        raise GspoError(
            f"--allow {unknown[0]}", f"only {', '.join(WAIVABLE)} can be waived", "make the runs comparable instead"
        )
    if unknown := sorted(request.assume - ASSUMABLE.keys()):
        raise GspoError(f"--assume {unknown[0]}", f"it takes {', '.join(ASSUMABLE)}", "e.g. --assume start,data")
    declared = report_config(study)
    spec = parse_metric(request.metric or declared.metric)
    refuse_absent(request.seeds, {run.seed for run in study.runs}, "study")
    records = load_records(study, spec)
    if len(records) == 1:
        arm, by_seed = next(iter(records.items()))
        if missing := not_begun(study.folder, [(run.arm, run.seed) for run in study.runs]):
            raise GspoError(
                f"the study is unfinished: only {arm} has begun",
                f"still to train: {missing}",
                f"gspo train --resume {quoted(study.folder)} trains them all",
            )
        raise GspoError(
            f"the study has one arm, {arm}",
            "a comparison takes two",
            f"train another one into it: {command_for(next(iter(by_seed.values())).facts, 'ARM', sorted(by_seed))}",
        )
    baseline, others = _choose_arms(sorted(records), declared, request)
    runs = [record.facts for record in all_of(records)]
    if (request.assume or request.unpaired) and not all(facts.imported for facts in runs):
        option = "--assume" if request.assume else "--unpaired"
        raise GspoError(
            f"{option}: {study.folder} holds runs of this program", "they record their start, data and seeds",
            f"leave out {option}",
        )  # fmt: skip
    if why := why_not_judged(runs):
        return StudyComparison(study.folder.name, _describe(spec, baseline, others[0], records, why), [])
    pairs = [Pair(baseline, other, records[baseline], records[other]) for other in others]
    is_the_declared_one = _is_declared(pairs[0], declared, request)
    departures = [seed_departure(study, pair, declared) for pair in pairs]
    is_declared = is_the_declared_one and not departures[0]
    results = [
        _compare_pair(pair, why, spec, declared, is_declared, request)
        for pair, why in zip(pairs, departures, strict=True)
    ]
    family = iter(adjust([one for one in results[1:] if isinstance(one, Compared)]))
    beside = [next(family) if isinstance(one, Compared) else one for one in results[1:]]
    found = StudyComparison(study.folder.name, results[0], beside)
    if keep and is_the_declared_one:  # with other seeds than planned too, or an earlier result would stand there
        used = {run["run"] for one in results if isinstance(one, Compared) for run in one.runs}
        unused = _why_unused([r for r in all_of(records) if r.name not in used], [baseline, *others])
        text = json.dumps(found.to_json(), indent=1, sort_keys=True, allow_nan=False) + "\n"
        try:
            write_text(study.folder / FILE, text)
            write_sources(study.folder / FILE, all_of(records), unused)
        except GspoError as error:
            if error.code != ExitCode.STORAGE:
                raise
            return replace(found, unsaved=f"{error.message}: {error.why}")
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
    """(the baseline, the arms compared with it: the primary one first); the first arms where the study has not those
    that its recipe declared."""
    primary, baseline = request.treatment or declared.treatment, request.baseline or declared.baseline
    if request.baseline is None and baseline not in arms:
        baseline = next(arm for arm in arms if arm != primary)
    if request.treatment is None and primary not in arms:
        primary = next(arm for arm in arms if arm != baseline)
    return baseline, treatments(arms, "the study", baseline, primary, only=request.treatment is not None)


def treatments(arms: list[str], where: str, baseline: str, first: str, only: bool) -> list[str]:
    """The arms (or runs of a file) to compare with the baseline, in their order after the first; or `only` that one.

    Errors: GspoError naming those that there are.
    """
    for option, arm in (("--baseline", baseline), ("--treatment", first)):
        if arm not in arms:
            raise GspoError(f"no {arm!r} in {where}", f"it has {', '.join(arms)}", f"{option} takes one of them")
    if first == baseline:
        raise GspoError(
            f"nothing to compare in {where}",
            f"it has {', '.join(arms)}, and the baseline is {baseline}",
            "add a second one, or name two of them with --baseline and --treatment",
        )
    return [first] if only else [first, *(arm for arm in arms if arm not in (baseline, first))]


def _is_declared(primary: Pair, declared: ReportConfig, request: ComparisonRequest) -> bool:
    """Whether the recipe declared this comparison: its metric, pair and margin, and every complete pair of runs."""
    valid, _ = primary.drop_invalid()
    return (
        not (request.assume or request.unpaired)
        and request.metric in (None, declared.metric)
        and request.margin in (None, declared.margin)
        and (primary.baseline, primary.treatment) == (declared.baseline, declared.treatment)
        and (request.seeds is None or set(valid.seeds) <= set(request.seeds))
    )


def seed_departure(study: Study, pair: Pair, declared: ReportConfig) -> str:
    """How the pair's seeds and steps differ from those that the study planned."""
    valid, invalid = pair.drop_invalid()
    planned = planned_seeds(study.folder, (pair.baseline, pair.treatment))
    planned_steps = {r.name: r.facts.run_json.get("planned_steps", r.facts.planned_steps) for r in valid.records}
    changed = [r.name for r in valid.records if r.facts.planned_steps != planned_steps[r.name]]
    steps = f"a resume changed train.steps of {', '.join(changed)}" if changed else ""
    seeds = departure(planned, valid.seeds, sorted({r.run.seed for r in invalid}), declared.looks)
    return "; ".join(filter(None, (seeds, steps)))


def refuse_absent(asked: Sequence[int] | None, present: Collection[int], where: str) -> None:
    """Errors: GspoError for a seed that no run has."""
    if absent := sorted(set(asked or ()) - set(present)):
        raise GspoError(
            f"--seeds {','.join(map(str, absent))}: no run has it",
            f"the {where} has seeds {', '.join(map(str, sorted(present)))}",
            "name some of these, or leave out --seeds for all",
        )


def _look(num_seeds: int, looks: tuple[int, ...]) -> str:
    """Which of the planned looks a comparison is."""
    if not looks:
        return ""
    number = looks.index(num_seeds) + 1 if num_seeds in looks else len(looks)
    return f"Look {number} of {len(looks)}, each at 5 % / {len(looks)}."


def _compare_pair(
    pair: Pair, departure: str, spec: MetricSpec, declared: ReportConfig, is_declared: bool, request: ComparisonRequest
) -> Found:
    """The comparison of a pair of arms, its p-values not yet adjusted; or the refusal to compare them."""
    valid, invalid = pair.drop_invalid()
    kept = valid if request.seeds is None else valid.narrow(request.seeds)
    ungraded = 0
    if request.grader_errors_wrong:
        if not any(record.answers for record in kept.records):
            why = f"{spec.text} is not computed from graded answers"
            raise GspoError("--grader-errors wrong", f"{why}, so it changes nothing", "leave it out")
        ungraded = sum(r.answers.num_ungraded for r in kept.records if r.answers)
        kept = kept.ungraded_as_wrong()
    imported = any(record.facts.imported for record in kept.records)
    kept = kept.in_order() if request.unpaired else kept
    failed = failures(kept, spec, OF_IMPORTED if imported else CHECKS)
    if remaining := [f for f in failed if f.check not in request.allow]:
        return Found(
            verdict="refused", sentence=refusal(len(remaining)), metric=spec.text, baseline=pair.baseline,
            treatment=pair.treatment, declared=is_declared, reasons=remaining,
        )  # fmt: skip
    fallen, sunk = collapses(kept, declared.collapse), below_start(kept)
    margin = declared.margin if request.margin is None else request.margin
    collapsed_S = fallen.among(kept.seeds) if fallen else None
    stats = difference_stats(scores(kept, spec), margin, collapsed_S, max(1, len(declared.looks)))
    settings, better = settings_of(pair, declared), better_of(spec)
    unequal = "" if better == "neither" else settings.unequal
    if imported:
        needs = needed(settings, better != "neither", not request.unpaired, fallen is not None)
        unequal = unstated(needs, request.assume)
        settings = with_assumptions(settings, request.assume, not request.unpaired)
    evidence = replace(stats.evidence(fallen, sunk, unequal), collapses_unknown=fallen is None)
    left, right = (next(iter(side.values())) for side in (kept.left, kept.right))
    names = _display_name(left), _display_name(right)
    wording = Wording(
        *names, number=spec.text, recipe="" if imported else _recipe_name(left), budget=spec.budget,
        points=stats.scores.points, unit=unit_of(spec), better=better, declared=is_declared, why_exploratory=departure,
        conditions=conditions(settings, dict(zip((pair.baseline, pair.treatment), names, strict=True))),
        look=_look(len(kept.seeds), declared.looks),
    )  # fmt: skip
    bench = getattr(spec, "bench", "")
    return Compared(
        metric=spec.text,
        baseline=pair.baseline,
        treatment=pair.treatment,
        declared=is_declared,
        seeds=kept.seeds,
        stats=stats,
        evidence=evidence,
        wording=wording,
        apart_from_step=curves_apart_from(kept, spec),
        budget=_budget(kept, spec),
        collapses=fallen,
        below_start=sunk,
        sensitivity=sensitivity(kept.seeds, stats, evidence, better),
        tuning={arm: declared.tuning.get(arm) for arm in (pair.baseline, pair.treatment)},
        settings=settings,
        start_share=_start_shares(kept, stats),
        learning_curves=learning_curves(kept, spec, stats.kept_S),
        failed=[{"run": r.name, "reason": r.facts.reason} for r in kept.records if r.facts.status == "failed"],
        invalidated=[{"run": r.name, "reason": r.facts.invalid} for r in invalid],
        waivers=failed,
        ungraded_as_wrong=ungraded,
        all_seeds={pair.baseline: sorted(pair.left), pair.treatment: sorted(pair.right)},
        data=_data(kept.records[0]),
        notes=[CONTAMINATION[bench]] if bench in CONTAMINATION else [],
        runs=[_provenance(r) for r in kept.records],
        versions={"gspo": __version__, "scipy": scipy.__version__, "numpy": np.__version__},
    )


def _why_unused(records: list[RunRecord], arms: list[str]) -> dict[str, str]:
    """Run -> why no comparison of these arms rests on it."""
    invalid_seeds = {record.run.seed for record in records if record.facts.invalid}
    reasons = {}
    for record in records:
        if record.facts.invalid:
            why = f"invalidated: {record.facts.invalid}"
        elif record.run.seed in invalid_seeds:
            why = "its partner is invalidated"
        else:
            why = "the comparison was refused" if record.run.arm in arms else "its arm was not compared"
        reasons[record.name] = why
    return reasons


def _display_name(record: RunRecord) -> str:
    """An arm's name in a sentence: `GSPO` for the plain arm of an algorithm, else the label itself."""
    run = record.run
    return run.arm.upper() if run.arm == run.algorithm else run.arm


def _recipe_name(record: RunRecord) -> str:
    """The recipe's name, or the study's if the file has none."""
    path = record.run.folder / "recipe.toml"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise corrupt(str(path), error) from error
    return str(table.get("name") or record.facts.config["name"])


def _start_shares(pair: Pair, stats: DifferenceStats) -> dict[str, StartShare] | None:
    """The start model's share of the variance of each arm's scores and of their difference, over the pairs without a
    collapse; None unless several start models have several seeds."""
    starts = [str(pair.left[seed].facts.run_json.get("model_sha256")) for seed in pair.seeds]
    kept = [start for start, keep in zip(starts, stats.kept_S.tolist(), strict=True) if keep]
    values = {"difference": stats.D_S, pair.baseline: stats.scores.baseline_S, pair.treatment: stats.scores.treatment_S}
    return {name: share for name, x_S in values.items() if (share := start_share(x_S[stats.kept_S], kept))} or None


def _budget(pair: Pair, spec: MetricSpec) -> Table:
    found: Table = {"axis": spec.budget, "ratios": {}}
    for axis in AXES:
        left, right = (_mean_total(side, axis) for side in (pair.left, pair.right))
        found[axis] = {"baseline": left, "treatment": right}
        found["ratios"][axis] = right / left if left and right is not None else None
    return found


def _mean_total(side: dict[int, RunRecord], axis: Axis) -> float | None:
    totals = [record.curves.total(axis) for record in side.values() if record.curves]
    known = [total for total in totals if total is not None]
    return float(np.mean(known)) if known and len(known) == len(totals) else None


def _data(record: RunRecord) -> Table:
    config, about = record.facts.config_flat, record.facts.run_json
    return {
        **{key: config.get(f"task.{key}") for key in ("name", "path", "revision")},
        **{key: about.get(key) for key in ("data_sha256", "model_sha256")},
        "benchmark": record.answers and record.answers.protocol,
    }


def _provenance(record: RunRecord) -> Table:
    run, curves = record.run, record.curves
    return {
        "run": record.name, "run_id": run.run_id, "arm": run.arm, "seed": run.seed, "status": record.facts.status,
        "log_sha256": curves and curves.sha256, "torn_bytes": curves and curves.torn_bytes,
    }  # fmt: skip


def _describe(spec: MetricSpec, baseline: str, treatment: str, records: Records, why: str) -> Described:
    """For studies that are not judged: every arm's values with mean and spread; no test, no interval, no order."""
    values = {arm: _curve_scores(spec, by_seed) for arm, by_seed in sorted(records.items())}
    steps = {str(r.facts.run_json.get("step_is", "rollout batch")) for r in all_of(records)}
    return Described(
        verdict="descriptive", metric=spec.text, baseline=baseline, treatment=treatment,
        sentence=f"Descriptive: {why}; nothing is tested and no arm is ranked.",
        arms=[{"arm": arm, "values": own, "text": _mean_text(own)} for arm, own in values.items()],
        notes=[f"A step is {' in some runs, '.join(sorted(steps))}."],
    )  # fmt: skip


def _curve_scores(spec: MetricSpec, by_seed: dict[int, RunRecord]) -> dict[int, float]:
    """Seed -> score, of the runs that logged the metric."""
    if isinstance(spec, BenchmarkMetric):
        return {}
    scores = zip(by_seed, logged_scores(list(by_seed.values()), spec), strict=True)
    return {seed: score for seed, score in scores if not np.isnan(score)}


def _mean_text(by_seed: dict[int, float]) -> str:
    if not by_seed:
        return "no value"
    values = np.array(list(by_seed.values()))
    spread = f", standard deviation {values.std(ddof=1):.4g}" if len(values) > 1 else ""
    each = ", ".join(f"seed {seed}: {value:.4g}" for seed, value in by_seed.items())
    return f"mean {values.mean():.4g}{spread} over {len(values)} runs ({each})"
