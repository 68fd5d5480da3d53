"""A comparison as plain values: every number behind its sentence, and every fact that may speak against it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy

from gspo_cli import __version__
from gspo_cli.config import ReportConfig
from gspo_cli.report.compare.learning_curves import learning_curves
from gspo_cli.report.compare.preconditions import Failure
from gspo_cli.report.compare.result import (
    Budget,
    CollapsedRuns,
    Compared,
    Data,
    Found,
    OtherPairs,
    RunNote,
)  # fmt: skip
from gspo_cli.report.compare.scores import (
    Collapses,
    DifferenceStats,
    Sides,
    below_start,
    collapses,
    curves_apart_from,
    difference_stats,
)
from gspo_cli.report.compare.settings import Settings, conditions, settings_of
from gspo_cli.report.compare.verdict import CollapseCounts, Evidence, Wording, judge, refusal, sentence
from gspo_cli.report.runs.metric_spec import Axis, MetricSpec, better_of, unit_of
from gspo_cli.report.runs.pairs import Pair, RunRecord
from gspo_cli.report.runs.reader import corrupt
from gspo_cli.stats.robust import holds_for_all_runs, most
from gspo_cli.stats.starts import StartShare, start_share

AXES: tuple[Axis, ...] = ("steps", "tokens", "seconds")
ALL_PAIRS = "all pairs, collapsed runs included"
NONE_BELOW = "only pairs in which no run collapsed or ended below its start"
CONTAMINATION = {"aime24": "AIME'24 has been public since early 2024; base models may have seen it."}
"""What readers of a benchmark's score must know."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pair of arms that may not be compared."""

    pair: Pair
    spec: MetricSpec
    declared: bool
    failures: list[Failure]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A pair of arms with its statistics."""

    pair: Pair
    """Every run of the two arms."""
    spec: MetricSpec
    declared: bool
    kept: Pair
    """The runs that enter the statistics."""
    stats: DifferenceStats
    config: ReportConfig
    invalid: list[RunRecord]
    waived: list[Failure]
    ungraded: int
    """Answers without a verdict that were counted as wrong."""
    p_holm: float | None = None
    """Of the t test, adjusted; None for the primary comparison, which is not."""
    p_equal_holm: float | None = None
    """Of the equality test, likewise."""
    why_exploratory: str = ""
    """How the seeds differ from the study's plan."""
    look: str = ""
    """Which of several planned looks this is."""


def judged(result: Comparison | Refusal) -> Found:
    """The comparison with its verdict and its sentence."""
    pair, spec = result.pair, result.spec
    head: dict[str, Any] = {
        "metric": spec.text,
        "baseline": pair.baseline,
        "treatment": pair.treatment,
        "declared": result.declared,
    }
    if isinstance(result, Refusal):
        return Found(verdict="refused", sentence=refusal(len(result.failures)), reasons=result.failures, **head)
    kept, stats, config = result.kept, result.stats, result.config
    fallen, sunk, settings = collapses(kept, config.collapse), below_start(kept), settings_of(pair, config)
    wording = _wording(result, settings)
    unequal = "" if wording.better == "neither" else settings.unequal
    counts = collapse_counts(fallen, len(kept.seeds), sunk)
    evidence = replace(evidence_of(stats, result.p_holm, counts), unequal=unequal)
    if result.p_equal_holm is not None:
        evidence = replace(evidence, p_equal=result.p_equal_holm)
    verdict = judge(evidence, wording.better)
    bench = getattr(spec, "bench", "")
    return Compared(
        **head,
        verdict=verdict,
        sentence=sentence(verdict, evidence, wording),
        recipe=wording.recipe,
        unit=wording.unit,
        points=wording.points,
        unit_known=stats.scores.unit_known,
        better=wording.better,
        seeds=kept.seeds,
        stats=stats,
        evidence=evidence,
        p_holm=result.p_holm,
        p_equal_holm=result.p_equal_holm,
        apart_from_step=curves_apart_from(kept, spec),
        budget=_budget(kept, spec),
        collapses=CollapsedRuns(
            fallen.baseline, fallen.treatment, fallen.p, Sides(counts.most_baseline, counts.most_treatment)
        ),
        below_start=sunk,
        sensitivity=_sensitivity(result, sunk, unequal, wording.better),
        tuning={arm: config.tuning.get(arm) for arm in (pair.baseline, pair.treatment)},
        settings=settings,
        start_share=_start_shares(kept, stats),
        learning_curves=learning_curves(kept, spec, stats.kept_S),
        failed=[RunNote(r.name, r.facts.reason) for r in kept.records if r.facts.status == "failed"],
        invalidated=[RunNote(r.name, r.facts.invalid) for r in result.invalid],
        waivers=result.waived,
        ungraded_as_wrong=result.ungraded,
        all_seeds={pair.baseline: sorted(pair.left), pair.treatment: sorted(pair.right)},
        data=_data(kept.records[0]),
        notes=[CONTAMINATION[bench]] if bench in CONTAMINATION else [],
        runs=[_provenance(r) for r in kept.records],
        versions={"gspo": __version__, "scipy": scipy.__version__, "numpy": np.__version__},
    )


def evidence_of(stats: DifferenceStats, p_holm: float | None = None, counts: CollapseCounts | None = None) -> Evidence:
    """What the verdict depends on."""
    n, num_pairs, effect = int(stats.kept_S.sum()), len(stats.D_S), stats.effect
    if stats.t is None or stats.flip is None:
        return Evidence(n, effect, num_pairs, counts, flat=n > 1, new_problems=stats.over_problems, margin=stats.margin)

    def adjusted(p: float) -> float:
        return min(1.0, p * stats.looks)

    return Evidence(
        n, effect, num_pairs, counts, all_runs=_holds_for_all_runs(stats, counts), ci=stats.t.ci,
        ci_equal=stats.t.ci_equal, p_t=adjusted(stats.t.p_mean) if p_holm is None else p_holm,
        p_exact=adjusted(stats.flip.p), p_equal=None if stats.p_equal is None else adjusted(stats.p_equal),
        new_problems=stats.two_way.ci if stats.two_way else None,
        margin=stats.margin, mde=stats.mde, seeds_needed=stats.seeds_needed,
    )  # fmt: skip


def collapse_counts(fallen: Collapses, num_pairs: int, sunk: Sides[list[int]] | None = None) -> CollapseCounts:
    """The counts with their bounds; `sunk` = the runs that ended below their start, where the curves are known."""
    a, b = len(fallen.baseline), len(fallen.treatment)
    below = (len(sunk.baseline), len(sunk.treatment)) if sunk else (0, 0)
    return CollapseCounts(a, b, most(a, num_pairs), most(b, num_pairs), fallen.p, *below)


def _sensitivity(result: Comparison, sunk: Sides[list[int]], unequal: str, better: str) -> list[OtherPairs]:
    """The verdict with the pairs that a collapse leaves out, and without those in which a run ended below its start;
    only where that changes the pairs. Not adjusted for several arms."""
    stats, seeds = result.stats, np.array(result.kept.seeds)
    nothing = np.zeros(len(seeds), dtype=bool)
    below = np.isin(seeds, [*sunk.baseline, *sunk.treatment])
    margin = stats.margin and stats.margin * (100 if stats.scores.points else 1)
    found = []
    for name, out_S in ((ALL_PAIRS, nothing), (NONE_BELOW, below | ~stats.kept_S)):
        if len(seeds) == 1 or out_S.all() or (~out_S == stats.kept_S).all():
            continue
        other = difference_stats(stats.scores, margin, out_S, stats.looks)
        evidence = replace(evidence_of(other), unequal=unequal, pairs=int((~out_S).sum()))
        found.append(OtherPairs(name, evidence.n, evidence.effect, evidence.ci, judge(evidence, better)))
    return found


def _holds_for_all_runs(stats: DifferenceStats, counts: CollapseCounts | None) -> bool:
    """Whether the arm that is ahead without collapses is ahead over all runs too: it collapsed no more often, and its
    lead outweighs every collapse that the counts still allow."""
    if counts is None or stats.t is None or not stats.scores.points:
        return False
    ahead = stats.effect > 0
    low = stats.t.ci[0] if ahead else -stats.t.ci[1]
    fewer = counts.treatment <= counts.baseline if ahead else counts.baseline <= counts.treatment
    return fewer and holds_for_all_runs(low, len(stats.D_S), int((~stats.kept_S).sum()))


def _wording(result: Comparison, settings: Settings) -> Wording:
    left, right = (next(iter(side.values())) for side in (result.kept.left, result.kept.right))
    names = {result.pair.baseline: _display_name(left), result.pair.treatment: _display_name(right)}
    return Wording(
        baseline=_display_name(left), treatment=_display_name(right), number=result.spec.text,
        recipe=_recipe_name(left), budget=result.spec.budget, points=result.stats.scores.points,
        unit=unit_of(result.spec), better=better_of(result.spec), declared=result.declared,
        why_exploratory=result.why_exploratory, conditions=conditions(settings, names), look=result.look,
    )  # fmt: skip


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


def _budget(pair: Pair, spec: MetricSpec) -> Budget:
    means = dict[str, Sides[float | None]]()
    for axis in AXES:
        totals = [[r.curves.total(axis) for r in side.values() if r.curves] for side in (pair.left, pair.right)]
        known = [[x for x in side if x is not None] for side in totals]
        means[axis] = Sides(*(float(np.mean(side)) if side and len(side) == len(every) else None
                              for side, every in zip(known, totals, strict=True)))  # fmt: skip
    ratios = {axis: m.treatment / m.baseline if m.baseline and m.treatment is not None else None
              for axis, m in means.items()}  # fmt: skip
    return Budget(spec.budget, ratios, **means)


def _data(record: RunRecord) -> Data:
    config, about = record.facts.config_flat, record.facts.run_json
    return Data(
        config.get("task.name"), config.get("task.path"), config.get("task.revision"), about.get("data_sha256"),
        about.get("model_sha256"), None if record.answers is None else record.answers.protocol,
    )  # fmt: skip


def _provenance(record: RunRecord) -> dict[str, Any]:
    run, curves = record.run, record.curves
    return {
        "run": record.name, "run_id": run.run_id, "arm": run.arm, "seed": run.seed, "status": record.facts.status,
        "log_sha256": curves and curves.sha256, "torn_bytes": curves and curves.torn_bytes,
    }  # fmt: skip
