"""A comparison as plain values: every number behind its sentence, and every fact that a reader may hold against it."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy

from gspo_cli import __version__
from gspo_cli.config import ReportConfig
from gspo_cli.report.collapses import collapses
from gspo_cli.report.judged_by import Axis, Number, better_of, unit_of
from gspo_cli.report.numbers import Measured, curves_apart_from
from gspo_cli.report.pairs import Member, Pair
from gspo_cli.report.preconditions import Failure
from gspo_cli.report.sentences import Wording, refusal, sentence
from gspo_cli.report.stats_power import sd_range
from gspo_cli.report.verdict import Evidence, judge

AXES: tuple[Axis, ...] = ("steps", "tokens", "seconds")
OTHER_SAMPLES = (0.25, 4.0)
"""Multiples of k at which the spread to expect is shown."""
PUBLIC = {"aime24": "AIME'24 has been public since early 2024; base models may have seen it."}
"""What a benchmark's readers must know."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A pair of arms that may not be compared."""

    pair: Pair
    number: Number
    declared: bool
    failures: list[Failure]


@dataclass(frozen=True, slots=True)
class Compared:
    """A pair of arms with all that was measured."""

    pair: Pair
    """Every run of the two arms."""
    number: Number
    declared: bool
    kept: Pair
    """The runs that take part."""
    measured: Measured
    config: ReportConfig
    invalid: list[Member]
    waived: list[Failure]
    ungraded: int
    """Answers without a verdict that were counted as wrong."""
    p_holm: float | None = None
    """Of the t test, adjusted; None for the primary comparison, which is not."""


def told(found: Compared | Refused) -> dict[str, Any]:
    """The comparison for JSON: full precision, null for what has no value."""
    head = {
        "metric": found.number.text,
        "baseline": found.pair.baseline,
        "treatment": found.pair.treatment,
        "declared": found.declared,
    }
    if isinstance(found, Refused):
        reasons = [asdict(f) for f in found.failures]
        return {"verdict": "refused", "sentence": refusal(len(reasons)), **head, "reasons": reasons}
    evidence, wording = evidence_of(found.measured, found.p_holm), wording_of(found)
    code = judge(evidence, wording.better)
    return {
        "verdict": code,
        "sentence": sentence(code, evidence, wording),
        **head,
        "recipe": wording.recipe,
        "unit": wording.unit,
        "points": wording.points,
        "better": wording.better,
        **_tests(found, evidence),
        **_runs(found),
        "reasons": [],
        "waivers": [asdict(f) for f in found.waived],
    }


def evidence_of(m: Measured, p_holm: float | None = None) -> Evidence:
    """What the verdict is judged by."""
    n, effect = len(m.D_S), float(m.D_S.mean())
    if m.t is None or m.flip is None:
        return Evidence(n, effect, flat=n > 1, new_problems=m.over_problems, margin=m.margin)
    return Evidence(
        n, effect, ci=m.t.ci, ci90=m.t.ci90, p_t=m.t.p if p_holm is None else p_holm, p_exact=m.flip.p,
        p_equal=max(m.tost) if m.tost else None, new_problems=m.two_way.ci if m.two_way else None, margin=m.margin,
        mde=m.mde, seeds_needed=m.seeds_needed,
    )  # fmt: skip


def wording_of(found: Compared) -> Wording:
    """How the sentence names this comparison's parts."""
    one, other = (next(iter(side.values())) for side in (found.kept.left, found.kept.right))
    return Wording(
        baseline=shown(one), treatment=shown(other), number=found.number.text, recipe=recipe_of(one),
        budget=found.number.budget, points=found.measured.scores.points, unit=unit_of(found.number),
        better=better_of(found.number), declared=found.declared,
    )  # fmt: skip


def shown(member: Member) -> str:
    """An arm's name in a sentence: `GSPO` for the plain arm of an algorithm, else the label as it is."""
    run = member.facts.run
    return run.arm.upper() if run.arm == run.algorithm else run.arm


def recipe_of(member: Member) -> str:
    """The recipe's name; the study's where the file names none."""
    path = member.facts.run.folder / "recipe.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return str(table.get("name") or member.facts.config["name"])


def _tests(found: Compared, evidence: Evidence) -> dict[str, Any]:
    """The statistics."""
    m = found.measured
    cube, t, flip = m.scores.cube, m.t, m.flip
    p_values = [p for p in (evidence.p_t, evidence.p_exact) if p is not None]
    noise = m.noise and asdict(m.noise) | {
        "share": m.noise.share, "sd_at": {f"{factor:g} k": m.noise.sd(factor) for factor in OTHER_SAMPLES}
    }  # fmt: skip
    return {
        "n": evidence.n,
        "seeds": found.kept.seeds,
        "n_problems": None if cube is None else cube[0].shape[1],
        "n_contests": None if m.scores.contests_J is None else len(set(m.scores.contests_J.tolist())),
        "k": m.scores.k,
        "effect": evidence.effect,
        "sd": t and t.sd,
        "ci": evidence.ci,
        "ci_method": "paired t over seeds, 95 %",
        "ci90": evidence.ci90,
        "t": t and t.t,
        "df": t and t.df,
        "p_t": t and t.p,
        "p_exact": evidence.p_exact,
        "exact": flip and flip.exact,
        "exact_flips": flip and flip.flips,
        "p_holm": found.p_holm,
        "p_claim": max(p_values) if p_values else None,
        "two_way": m.two_way and {k.replace("v", "V"): v for k, v in asdict(m.two_way).items()},
        "ci_over_problems": m.over_problems,
        "margin": m.margin,
        "p_equal": evidence.p_equal,
        "mde": m.mde,
        "seeds_needed": m.seeds_needed,
        "sd_range": sd_range(evidence.n) if t else None,
        "noise": noise,
        "correlation": m.correlation,
        "apart_from_step": curves_apart_from(found.kept, found.number),
    }


def _runs(found: Compared) -> dict[str, Any]:
    """The runs, what they cost, and what speaks against them."""
    pair, s = found.kept, found.measured.scores
    rows = zip(pair.seeds, s.baseline_S.tolist(), s.treatment_S.tolist(), found.measured.D_S.tolist(), strict=True)
    failed = [m for m in pair.members if m.facts.status == "failed"]
    tuning = {arm: None if (own := found.config.tuning.get(arm)) is None else own.model_dump(mode="json")
              for arm in (pair.baseline, pair.treatment)}  # fmt: skip
    bench = getattr(found.number, "bench", "")
    return {
        "per_seed": [dict(zip(("seed", "baseline", "treatment", "difference"), row, strict=True)) for row in rows],
        "budget": budget(pair, found.number),
        "collapses": asdict(collapses(pair, found.config.collapse)),
        "tuning": tuning,
        "failed": [{"run": m.name, "reason": m.facts.reason} for m in failed],
        "invalidated": [{"run": m.name, "reason": m.facts.invalid} for m in found.invalid],
        "ungraded_as_wrong": found.ungraded,
        "all_seeds": {pair.baseline: sorted(found.pair.left), pair.treatment: sorted(found.pair.right)},
        "data": _data(pair),
        "notes": [PUBLIC[bench]] if bench in PUBLIC else [],
        "runs": [_provenance(m) for m in pair.members],
        "versions": {"gspo": __version__, "scipy": scipy.__version__, "numpy": np.__version__},
    }


def budget(pair: Pair, number: Number) -> dict[str, Any]:
    """What each arm spent on average a run, and treatment over baseline; the axis on which they are equal."""
    found: dict[str, Any] = {"axis": number.budget, "ratios": {}}
    for axis in AXES:
        totals = [[m.curves.total(axis) for m in side.values() if m.curves] for side in (pair.left, pair.right)]
        known = [[x for x in side if x is not None] for side in totals]
        means = [float(np.mean(side)) if side and len(side) == len(every) else None
                 for side, every in zip(known, totals, strict=True)]  # fmt: skip
        found[axis] = dict(zip(("baseline", "treatment"), means, strict=True))
        found["ratios"][axis] = means[1] / means[0] if means[0] and means[1] is not None else None
    return found


def _data(pair: Pair) -> dict[str, Any]:
    """What the runs were trained on and, for stored answers, measured by."""
    member = pair.members[0]
    task = {key: member.facts.config_flat.get(f"task.{key}") for key in ("name", "path", "revision")}
    return task | {
        "data_sha256": member.facts.about.get("data_sha256"),
        "model_sha256": member.facts.about.get("model_sha256"),
        "benchmark": None if member.answers is None else member.answers.protocol,
    }


def _provenance(member: Member) -> dict[str, Any]:
    facts, curves = member.facts, member.curves
    return {
        "run": member.name, "run_id": facts.run.run_id, "arm": facts.run.arm, "seed": facts.run.seed,
        "status": facts.status, "log_sha256": curves and curves.sha256, "torn_bytes": curves and curves.torn_bytes,
    }  # fmt: skip
