"""Compares the arms of a study with its baseline, as its recipe fixed before the runs, and says what that allows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from gspo_cli.config import ReportConfig
from gspo_cli.errors import GspoError
from gspo_cli.report.compared import Compared, Refused, told
from gspo_cli.report.described import described, is_imported
from gspo_cli.report.folders import Study
from gspo_cli.report.judged_by import Number, parse_number
from gspo_cli.report.numbers import measure, scores
from gspo_cli.report.pairs import Member, Pair, load_members
from gspo_cli.report.preconditions import WAIVABLE, failures, unknown_seeds
from gspo_cli.report.sources import write_sources
from gspo_cli.report.stats_pairs import holm
from gspo_cli.runlog.fs import write_text

FILE = "compare.json"
"""In the study's folder; holds the declared comparison only."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the caller wants otherwise than the recipe declared."""

    metric: str | None = None
    baseline: str | None = None
    treatment: str | None = None
    margin: float | None = None
    seeds: Sequence[int] | None = None
    allow: frozenset[str] = field(default_factory=frozenset)
    """Preconditions waived: of `WAIVABLE` only."""
    grader_errors_wrong: bool = False


def compare(study: Study, asked: Asked) -> dict[str, Any]:
    """The comparison of the study's primary pair, the other arms under `others`; plain values, ready for JSON.

    The pair that the recipe names is primary and not adjusted; the others are one Holm family. A comparison that the
    recipe had not declared (another metric, pair or margin, or a choice among the finished seeds) is exploratory, and
    not kept: only the declared one is written to `compare.json`.

    Errors: GspoError for an unknown metric, arm or waiver, and for corrupt files.
    """
    if unknown := sorted(asked.allow - set(WAIVABLE)):
        raise GspoError(
            f"--allow {unknown[0]}", f"only {', '.join(WAIVABLE)} can be waived", "make the runs comparable instead"
        )
    declared = report_config(study)
    number = parse_number(asked.metric or declared.metric)
    members = load_members(study, number)
    baseline, treatments = choose_arms(list(members), declared, asked)
    everything = [member for by_seed in members.values() for member in by_seed.values()]
    if any(is_imported(member) for member in everything):
        return {"study": study.folder.name, **described(number, baseline, treatments[0], members), "others": []}
    pairs = [Pair(baseline, other, members[baseline], members[other]) for other in treatments]
    fixed = is_declared(pairs[0], declared, asked)
    results = _adjusted([_one(pair, number, declared, fixed, asked) for pair in pairs])
    first, *others = map(told, results)
    found = {"study": study.folder.name, **first, "others": others}
    if fixed:
        write_text(study.folder / FILE, json.dumps(found, indent=1, sort_keys=True, allow_nan=False) + "\n")
        write_sources(study.folder / FILE, everything, _left_out(everything, results))
    return found


def _left_out(members: list[Member], results: list[Compared | Refused]) -> dict[str, str]:
    """Run -> why no comparison rests on it."""
    used = {m.name for r in results if isinstance(r, Compared) for m in r.kept.members}
    compared = {arm for r in results for arm in (r.pair.baseline, r.pair.treatment)}
    reasons = {}
    for member in members:
        run, invalid = member.facts.run, member.facts.invalid
        if member.name not in used:
            refused = "the comparison was refused" if run.arm in compared else "its arm was not compared"
            partner = any(m.facts.invalid and m.facts.run.seed == run.seed for m in members)
            reasons[member.name] = (
                f"invalidated: {invalid}" if invalid else "its partner is invalidated" if partner else refused
            )
    return reasons


def report_config(study: Study) -> ReportConfig:
    """What the study's recipe fixed for the report.

    Errors: GspoError if it declares nothing that can be judged.
    """
    first = next(iter(study.runs))
    config = json.loads((first.folder / "config.json").read_text())
    try:
        return ReportConfig.model_validate(config.get("report") or {})
    except ValidationError as error:
        bad = error.errors(include_url=False)[0]
        raise GspoError(
            f"{first.folder / 'config.json'}: report.{'.'.join(map(str, bad['loc']))}: {bad['msg']}",
            "the recipe's [report] table says what the study is judged by",
            "compare with the version of gspo that trained it",
        ) from error


def choose_arms(arms: list[str], declared: ReportConfig, asked: Asked) -> tuple[str, list[str]]:
    """(the baseline, the arms compared with it: the primary one first).

    Errors: GspoError naming the study's arms.
    """
    baseline = asked.baseline or declared.baseline
    wanted = asked.treatment or (declared.treatment if declared.treatment in arms else None)
    for option, arm in (("--baseline", baseline), ("--treatment", wanted)):
        if arm is not None and arm not in arms:
            raise GspoError(f"no arm {arm!r} in the study", f"it has {', '.join(arms)}", f"{option} takes one of them")
    others = [arm for arm in sorted(arms) if arm != baseline]
    if wanted == baseline or not others:
        raise GspoError(
            "nothing to compare",
            f"the study has {', '.join(arms)}, and the baseline is {baseline}",
            "train a second arm into it, or name two arms with --baseline and --treatment",
        )
    if wanted is None and len(others) > 1:
        raise GspoError(
            f"no arm {declared.treatment!r} in the study, which the recipe names as the treatment",
            f"it has {', '.join(arms)}",
            f"--treatment {others[0]}",
        )
    if asked.treatment:
        return baseline, [asked.treatment]
    return baseline, sorted(others, key=lambda arm: arm != (wanted or others[0]))


def is_declared(primary: Pair, declared: ReportConfig, asked: Asked) -> bool:
    """Whether the recipe had fixed this comparison: its metric, pair and margin, and every complete pair of runs."""
    valid, _ = primary.drop_invalid()
    return (
        asked.metric in (None, declared.metric)
        and asked.margin in (None, declared.margin)
        and (primary.baseline, primary.treatment) == (declared.baseline, declared.treatment)
        and (asked.seeds is None or set(valid.seeds) <= set(asked.seeds))
    )


def _one(pair: Pair, number: Number, declared: ReportConfig, fixed: bool, asked: Asked) -> Compared | Refused:
    """One pair of arms: refused, or measured."""
    valid, invalid = pair.drop_invalid()
    kept = valid if asked.seeds is None else valid.narrow(asked.seeds)
    ungraded = sum(m.answers.num_ungraded for m in kept.members if m.answers) if asked.grader_errors_wrong else 0
    if asked.grader_errors_wrong:
        kept = kept.ungraded_as_wrong()
    failed = [*unknown_seeds(kept, asked.seeds or ()), *failures(kept, number)]
    if remaining := [f for f in failed if f.check not in asked.allow]:
        return Refused(pair, number, fixed, remaining)
    margin = declared.margin if asked.margin is None else asked.margin
    measured = measure(scores(kept, number), margin)
    return Compared(pair, number, fixed, kept, measured, declared, invalid, failed, ungraded)


def _adjusted(results: list[Compared | Refused]) -> list[Compared | Refused]:
    """The comparisons after the first with their t tests adjusted as one family."""
    tested = [r for r in results[1:] if isinstance(r, Compared) and r.measured.t]
    adjusted = holm([r.measured.t.p for r in tested if r.measured.t])
    p_holm = {id(r): p for r, p in zip(tested, adjusted, strict=True)}
    return [replace(r, p_holm=p_holm.get(id(r))) if isinstance(r, Compared) else r for r in results]
