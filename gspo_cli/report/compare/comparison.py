"""A comparison as plain values: every number behind its sentence, and every fact that may speak against it."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import scipy

from gspo_cli import __version__
from gspo_cli.config import ReportConfig
from gspo_cli.report.compare.learning_curves import learning_curves
from gspo_cli.report.compare.preconditions import Failure
from gspo_cli.report.compare.scores import Collapses, DifferenceStats, collapses, curves_apart_from
from gspo_cli.report.compare.settings import Settings, conditions, settings_of
from gspo_cli.report.compare.verdict import CollapseCounts, Evidence, Wording, estimand, judge, refusal, sentence
from gspo_cli.report.runs.metric_spec import Axis, MetricSpec, better_of, unit_of
from gspo_cli.report.runs.pairs import Pair, RunRecord
from gspo_cli.stats.paired import sd_range
from gspo_cli.stats.robust import holds_for_all_runs, most, pairs_for_all_runs
from gspo_cli.stats.starts import start_share

AXES: tuple[Axis, ...] = ("steps", "tokens", "seconds")
OTHER_SAMPLES = (0.25, 4.0)
"""Multiples of k for which the expected standard deviation is shown."""
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


def to_dict(result: Comparison | Refusal) -> dict[str, Any]:
    """The comparison for JSON: full precision, null for what has no value."""
    head = {
        "metric": result.spec.text,
        "baseline": result.pair.baseline,
        "treatment": result.pair.treatment,
        "declared": result.declared,
    }
    if isinstance(result, Refusal):
        reasons = [asdict(f) for f in result.failures]
        return {"verdict": "refused", "sentence": refusal(len(reasons)), **head, "reasons": reasons}
    fallen, settings = collapses(result.kept, result.config.collapse), settings_of(result.pair, result.config)
    wording = _wording(result, settings)
    counts = collapse_counts(fallen, len(result.kept.seeds))
    unequal = "" if wording.better == "neither" else settings.unequal
    evidence = replace(evidence_of(result.stats, result.p_holm, counts), unequal=unequal)
    if result.p_equal_holm is not None:
        evidence = replace(evidence, p_equal=result.p_equal_holm)
    verdict = judge(evidence, wording.better)
    return {
        "verdict": verdict,
        "sentence": sentence(verdict, evidence, wording),
        **head,
        "recipe": wording.recipe,
        "unit": wording.unit,
        "points": wording.points,
        "unit_known": result.stats.scores.unit_known,
        "better": wording.better,
        **numbers(result.stats, evidence, result.kept.seeds),
        "p_holm": result.p_holm,
        "p_equal_holm": result.p_equal_holm,
        "apart_from_step": curves_apart_from(result.kept, result.spec),
        **_runs(result, fallen, settings),
        "reasons": [],
        "waivers": [asdict(f) for f in result.waived],
    }


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


def collapse_counts(fallen: Collapses, num_pairs: int) -> CollapseCounts:
    """The counts with their bounds."""
    a, b = len(fallen.baseline), len(fallen.treatment)
    return CollapseCounts(a, b, most(a, num_pairs), most(b, num_pairs), fallen.p)


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
    table = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return str(table.get("name") or record.facts.config["name"])


def numbers(stats: DifferenceStats, evidence: Evidence, seeds: list[int]) -> dict[str, Any]:
    """The estimates, intervals and tests behind a sentence."""
    cube, t, flip = stats.scores.cube, stats.t, stats.flip
    p_values = [p for p in (evidence.p_t, evidence.p_exact) if p is not None]
    noise, contests_J = stats.noise, stats.scores.contests_J
    sd_at = {f"{factor:g} k": noise.sd(factor) for factor in OTHER_SAMPLES} if noise else {}
    return {
        "n": evidence.n,
        "n_pairs": len(stats.D_S),
        "estimand": estimand(evidence),
        "seeds": seeds,
        "n_problems": None if cube is None else cube[0].shape[1],
        "n_contests": None if contests_J is None else len(set(contests_J.tolist())),
        "k": stats.scores.k,
        "effect": evidence.effect,
        "sd": t and t.sd,
        "ci": evidence.ci,
        "ci_method": "over seeds, 95 %: around paired t and the same corrected for skewness",
        "ci_t": t and t.ci_t,
        "ci_equal": evidence.ci_equal,
        "skew": t and t.skew,
        "p_skew": t and t.p_skew,
        "median": asdict(stats.median),
        "iqm": asdict(stats.iqm),
        "improvement": asdict(stats.improvement),
        "pairs_for_all_runs": _pairs_for_all_runs(stats),
        "t": t and t.t,
        "df": t and t.df,
        "p_t": t and t.p,
        "p_mean": t and t.p_mean,
        "p_exact": flip and flip.p,
        "looks": stats.looks,
        "exact": flip and flip.exact,
        "exact_flips": flip and flip.flips,
        "p_claim": max(p_values) if p_values else None,
        "two_way": stats.two_way and {k.replace("v", "V"): v for k, v in asdict(stats.two_way).items()},
        "ci_over_problems": stats.over_problems,
        "margin": stats.margin,
        "p_equal": stats.p_equal,
        "mde": stats.mde,
        "seeds_needed": stats.seeds_needed,
        "sd_range": sd_range(evidence.n) if t else None,
        "noise": noise and asdict(noise) | {"share": noise.share, "sd_at": sd_at},
        "correlation": stats.correlation,
    }


def _pairs_for_all_runs(stats: DifferenceStats) -> int | None:
    """Pairs without a collapse from which the statement would hold for all runs."""
    if stats.t is None or not stats.scores.points:
        return None
    return pairs_for_all_runs(stats.t.ci[0] if stats.effect > 0 else -stats.t.ci[1])


def _runs(result: Comparison, fallen: Collapses, settings: Settings) -> dict[str, Any]:
    """The runs, what they cost, and what speaks against them."""
    pair, s = result.kept, result.stats.scores
    rows = zip(pair.seeds, s.baseline_S.tolist(), s.treatment_S.tolist(), result.stats.D_S.tolist(), strict=True)
    tuning = {arm: None if (own := result.config.tuning.get(arm)) is None else own.model_dump(mode="json")
              for arm in (pair.baseline, pair.treatment)}  # fmt: skip
    bench = getattr(result.spec, "bench", "")
    return {
        "per_seed": [dict(zip(("seed", "baseline", "treatment", "difference"), row, strict=True)) for row in rows],
        "budget": _budget(pair, result.spec),
        "collapses": asdict(fallen)
        | {
            "most": {
                "baseline": most(len(fallen.baseline), len(pair.seeds)),
                "treatment": most(len(fallen.treatment), len(pair.seeds)),
            }
        },
        "tuning": tuning,
        "settings": asdict(settings),
        "start_share": _start_shares(pair, result.stats),
        "learning_curves": learning_curves(pair, result.spec, result.stats.kept_S),
        "failed": [{"run": r.name, "reason": r.facts.reason} for r in pair.records if r.facts.status == "failed"],
        "invalidated": [{"run": r.name, "reason": r.facts.invalid} for r in result.invalid],
        "ungraded_as_wrong": result.ungraded,
        "all_seeds": {pair.baseline: sorted(result.pair.left), pair.treatment: sorted(result.pair.right)},
        "data": _data(pair.records[0]),
        "notes": [CONTAMINATION[bench]] if bench in CONTAMINATION else [],
        "runs": [_provenance(r) for r in pair.records],
        "versions": {"gspo": __version__, "scipy": scipy.__version__, "numpy": np.__version__},
    }


def _start_shares(pair: Pair, stats: DifferenceStats) -> dict[str, Any] | None:
    """The start model's share of the variance of each arm's scores and of their difference, over the pairs without a
    collapse; None unless several start models have several seeds."""
    starts = [str(pair.left[seed].facts.run_json.get("model_sha256")) for seed in pair.seeds]
    kept = [start for start, keep in zip(starts, stats.kept_S.tolist(), strict=True) if keep]
    values = {"difference": stats.D_S, pair.baseline: stats.scores.baseline_S, pair.treatment: stats.scores.treatment_S}
    shares = {name: share for name, x_S in values.items() if (share := start_share(x_S[stats.kept_S], kept))}
    return {name: asdict(share) for name, share in shares.items()} or None


def _budget(pair: Pair, spec: MetricSpec) -> dict[str, Any]:
    """What each arm spent on average per run, and treatment over baseline; the axis on which they are equal."""
    found: dict[str, Any] = {"axis": spec.budget, "ratios": {}}
    for axis in AXES:
        totals = [[r.curves.total(axis) for r in side.values() if r.curves] for side in (pair.left, pair.right)]
        known = [[x for x in side if x is not None] for side in totals]
        means = [float(np.mean(side)) if side and len(side) == len(every) else None
                 for side, every in zip(known, totals, strict=True)]  # fmt: skip
        found[axis] = dict(zip(("baseline", "treatment"), means, strict=True))
        found["ratios"][axis] = means[1] / means[0] if means[0] and means[1] is not None else None
    return found


def _data(record: RunRecord) -> dict[str, Any]:
    """What the runs were trained on and, for stored answers, evaluated on."""
    task = {key: record.facts.config_flat.get(f"task.{key}") for key in ("name", "path", "revision")}
    return task | {
        "data_sha256": record.facts.run_json.get("data_sha256"),
        "model_sha256": record.facts.run_json.get("model_sha256"),
        "benchmark": None if record.answers is None else record.answers.protocol,
    }


def _provenance(record: RunRecord) -> dict[str, Any]:
    run, curves = record.run, record.curves
    return {
        "run": record.name, "run_id": run.run_id, "arm": run.arm, "seed": run.seed, "status": record.facts.status,
        "log_sha256": curves and curves.sha256, "torn_bytes": curves and curves.torn_bytes,
    }  # fmt: skip


Result = dict[str, Any]


def statistics(result: Result) -> list[tuple[str, str]]:
    """(name, value) of the tests and their inputs."""
    two = result["two_way"]
    plan = "n/a" if result["n_problems"] is None else f"{result['n_problems']}, k = {result['k'] or 'n/a'}"
    plan += f", from {result['n_contests']} contests" if result["n_contests"] else ""
    new = "n/a" if two is None else f"{interval(result, two['ci'])} (two-way clustered, df {two['df']})"
    adjusted = "" if result["p_holm"] is None else f", adjusted (Holm) {_p(result['p_holm'])}"
    correlation = "n/a" if result["correlation"] is None else f"{result['correlation']:.2f}"
    return [
        ("seeds", f"{result['n_pairs']}: {', '.join(map(str, result['seeds']))}"),
        ("pairs without a collapse", str(result["n"])),
        ("problems", plan),
        ("mean difference", f"{value(result, result['effect'], sign=True)} {unit(result)}"),
        ("95 % interval", f"{interval(result, result['ci'])} (over seeds, allowing for skewness)"),
        ("95 %, Student's t", interval(result, result["ci_t"])),
        ("for new problems", new),
        ("p, paired t", f"{_p(result['p_t'])}, corrected for skewness {_p(result['p_skew'])}{adjusted}"),
        ("p, exact", _exact(result)),
        ("p, equal", f"{_p(result['p_equal'])} (margin {value(result, result['margin'])})"),
        ("standard deviation", f"{value(result, result['sd'])}{_factors(result['sd_range'])}"),
        ("noise between seeds", _noise(result)),
        ("correlation of the arms", correlation),
        ("median, all pairs", _summary(result, result["median"])),
        ("interquartile mean", _summary(result, result["iqm"])),
        ("probability of improvement", _share(result["improvement"])),
        ("pairs for all runs", str(result["pairs_for_all_runs"] or "n/a")),
        ("curves apart from step", str(result["apart_from_step"] or "n/a")),
        ("detectable, 80 % power", value(result, result["mde"])),
        ("seeds to detect the margin", str(result["seeds_needed"] or "n/a")),
    ]


def costs(result: Result) -> list[tuple[str, str]]:
    """(name, value) of the runs' cost, their tuning, and how many collapsed."""
    spent, rows = result["budget"], list[tuple[str, str]]()
    for axis in ("steps", "tokens", "seconds"):
        ratio = spent["ratios"][axis]
        amounts = " and ".join(_count(spent[axis][side]) for side in ("baseline", "treatment"))
        rows.append((f"{axis} a run", amounts + ("" if ratio is None else f", ratio {ratio:.3f}")))
    texts = []
    for arm in (result["baseline"], result["treatment"]):
        tuning = result["tuning"][arm]
        texts.append(f"{arm}: {'not recorded' if tuning is None else _tuned(tuning)}")
    fallen = result["collapses"]
    bounds = " and ".join(f"{100 * fallen['most'][side]:.0f} %" for side in ("baseline", "treatment"))
    counts = f"{len(fallen['baseline'])} and {len(fallen['treatment'])} of {result['n_pairs']} runs (at most {bounds})"
    return [*rows, ("tuning", "; ".join(texts)), ("collapsed", f"{counts}, p = {_p(fallen['p'])} (exact McNemar)")]


def remarks(result: Result) -> list[str]:
    """What a reader must know beside the numbers."""
    lines = [f"Failed, counted with its last valid value: {f['run']} ({f['reason']})." for f in result["failed"]]
    lines += [f"Invalidated, left out with its pair: {i['run']} ({i['reason']})." for i in result["invalidated"]]
    lines += [f"Waived, {w['check']}: {w['what']}: {w['baseline']}; {w['treatment']}." for w in result["waivers"]]
    for arm, seeds in result["all_seeds"].items():
        if left := [str(seed) for seed in seeds if seed not in result["seeds"]]:
            lines.append(f"Left out of {arm}: seed {', '.join(left)}.")
    if result["ungraded_as_wrong"]:
        lines.append(f"{result['ungraded_as_wrong']} answers without a verdict counted as wrong.")
    data = result["data"]
    name = f"{data['name']}@{data['revision']}" if data["revision"] else data["name"]
    lines.append(f"Data: {name}, sha256 {str(data['data_sha256'])[:16]}.")
    lines += [f"At the edge of its grid: {command}" for command in result["settings"]["wider"]]
    if shares := result["start_share"]:
        first = next(iter(shares.values()))
        texts = [
            f"{name} {100 * s['share']:.0f} % [{100 * s['ci'][0]:.0f}, {100 * s['ci'][1]:.0f}]"
            for name, s in shares.items()
        ]
        of = f"{first['starts']} starts, {first['seeds']} seeds"
        lines.append(f"Share of the variance that comes from the start model ({of}): {', '.join(texts)}.")
    if result["unit"] == "reward" and not result["unit_known"]:
        lines.append("The recipe does not say what a reward of 1 means (report.unit), so no margin applies.")
    if not result["declared"]:
        lines.append("Not what the recipe declared before the runs: exploratory, and not kept.")
    return [*lines, *result["notes"]]


def value(result: Result, number: float | None, sign: bool = False) -> str:
    """A value of the metric; x 100 where it is reported in points."""
    if number is None:
        return "n/a"
    return f"{100 * number:{'+' if sign else ''}.2f}" if result["points"] else f"{number:{'+' if sign else ''}.4g}"


def unit(result: Result) -> str:
    """The unit of these values."""
    return "points" if result["points"] else str(result["unit"])


def _summary(result: Result, summary: Result) -> str:
    between = f" {interval(result, summary['ci'])}" if summary["ci"] else ""
    return value(result, summary["value"], sign=True) + between


def _share(summary: Result) -> str:
    low, high = summary["ci"]
    return f"{summary['value']:.2f} [{low:.2f}, {high:.2f}] (treatment above baseline in a pair)"


def interval(result: Result, ends: list[float] | None) -> str:
    """Both ends as `value` prints them."""
    return "n/a" if ends is None else f"[{value(result, ends[0])}, {value(result, ends[1])}]"


def _p(p: float | None) -> str:
    """Four decimals, or two digits of a small one."""
    return "n/a" if p is None else f"{p:.4f}" if p >= 0.001 else f"{p:.2g}"


def _tuned(tuning: Result) -> str:
    text = f"{tuning['trials']} trials on seeds {tuning['seeds']}"
    if tuning.get("chosen"):
        text += ", chose " + ", ".join(f"{key} = {number}" for key, number in tuning["chosen"].items())
    if tuning.get("seconds") is not None:
        text += f", {_count(tuning['gen_tokens'])} tokens and {_count(tuning['seconds'])} s"
    return text


def _exact(result: Result) -> str:
    if result["p_exact"] is None:
        return "n/a"
    how = "all" if result["exact"] else "Monte Carlo,"
    return f"{_p(result['p_exact'])} ({how} {result['exact_flips']:,} sign flips)"


def _count(amount: float | None) -> str:
    return "n/a" if amount is None else f"{amount:,.0f}" if amount >= 1000 else f"{amount:.4g}"


def _factors(ends: list[float] | None) -> str:
    return "" if ends is None else f" (the true one: 95 % within x {ends[0]:.2f} to x {ends[1]:.2f})"


def _noise(result: Result) -> str:
    noise = result["noise"]
    if noise is None or noise["share"] is None:
        return "n/a"
    plans = ", ".join(f"{value(result, sd)} at {plan}" for plan, sd in noise["sd_at"].items())
    return f"{100 * noise['share']:.1f} %; standard deviation {plans}"
