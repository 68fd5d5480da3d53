"""Puts the paper's claims to the test of a study: each supported, contradicted, inconclusive or not tested here."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gspo_cli.config import ReportConfig
from gspo_cli.report import claim_numbers as special
from gspo_cli.report.claim_arms import Members, differs, is_moe, pair_of
from gspo_cli.report.claim_batches import COMMAND, batch_reports, noise_slopes, token_form
from gspo_cli.report.claim_list import CLAIMS, Claim
from gspo_cli.report.claim_rules import Outcome, verdict_of
from gspo_cli.report.collapses import Collapses, collapses
from gspo_cli.report.compare import report_config
from gspo_cli.report.compared import evidence_of
from gspo_cli.report.folders import Study
from gspo_cli.report.judged_by import BenchNumber, Number, better_of, parse_number
from gspo_cli.report.numbers import Measured, Scores, measure, scores
from gspo_cli.report.pairs import Member, Pair, load_members
from gspo_cli.report.preconditions import failures
from gspo_cli.report.sources import write_sources
from gspo_cli.report.stats_pairs import holm
from gspo_cli.report.verdict import FEWEST, Evidence, judge
from gspo_cli.runlog.fs import write_text

FILE = "claims.json"
CURVES = {"rollout": {"reward/mean"}, "step": {special.CLIP, special.CHURN}}


@dataclass(frozen=True, slots=True)
class Row:
    """A claim with what the study's runs say about it."""

    claim: Claim
    pair: Pair | None = None
    measured: Measured | None = None
    fallen: Collapses | None = None
    points: bool = False
    shift: float = 0.0
    """Middle of the band, for `inside`: what was taken from the value."""
    better: str = "higher"
    not_tested: str = ""
    """Why, if it was not."""
    decide: str = ""
    """What would decide it, where that is not a matter of seeds."""
    second: Measured | None = None
    """For `ahead_twice`: against the second baseline."""
    seeds: tuple[int, ...] = ()
    """Where it rests on stored batches instead of pairs of runs."""


def claims(study: Study) -> dict[str, Any]:
    """Every claim's row, ready for JSON; also written to `claims.json` with its side file.

    Errors: GspoError for corrupt files, or a study whose recipe declares nothing.
    """
    declared = report_config(study)
    members = load_members(study, None, CURVES)
    rows = [_row(claim, study, members, declared) for claim in CLAIMS]
    told = [_told(row, adjusted) for row, adjusted in zip(rows, _adjust(rows), strict=True)]
    told.append(token_form(batch_reports(study)))
    found = {"study": study.folder.name, "rows": told}
    write_text(study.folder / FILE, json.dumps(found, indent=1, sort_keys=True, allow_nan=False) + "\n")
    everything = [member for by_seed in members.values() for member in by_seed.values()]
    used = {m.name for row in rows if row.measured and row.pair for m in row.pair.members}
    unused = {m.name: "no claim tested rests on it" for m in everything if m.name not in used}
    write_sources(study.folder / FILE, everything, unused)
    return found


def _row(claim: Claim, study: Study, members: Members, declared: ReportConfig) -> Row:
    """The measurement of one claim, or why there is none."""
    if claim.number == "noise_slope":
        return _from_batches(claim, study)
    number = _number(claim)
    if isinstance(number, BenchNumber):
        members = load_members(study, number)
    ranges = special.range_pairs(claim, members) if claim.number == "clip_range" else None
    pair = ranges[0] if ranges else pair_of(claim, members)
    train = f"gspo train {claim.recipe} --seeds 0-7"
    if pair is None or (claim.number == "clip_range" and ranges is None):
        return Row(claim, not_tested="the study has no such arms", decide=train)
    if claim.needs_experts and not is_moe(pair.members[0]):
        return Row(claim, pair, not_tested="the model has no experts", decide=train)
    if isinstance(number, BenchNumber) and not any(m.answers for m in pair.members):
        more = f"--contests {number.bench}=FILE" if number.kind == "elo" else f"--samples {number.k}"
        how = f"gspo eval benchmarks RUN --bench {number.bench} {more}, for every run"
        return Row(claim, pair, not_tested="no run was evaluated on it", decide=how)
    kept, _ = pair.drop_invalid()
    if claim.number != "churn":
        kinds = [kept, ranges[1].drop_invalid()[0]] if ranges else [kept]
        failed = [f for one in kinds for f in failures(one, number)]
        if failed:
            checks = ", ".join(dict.fromkeys(f.check for f in failed))
            return Row(claim, pair, not_tested=f"the runs are not comparable ({checks})", decide=failed[0].do)
    if claim.number in ("clip_ratio", "clip_range") and special.too_few_clipped(kept):
        return Row(claim, kept, not_tested="", decide="longer runs: the baseline clipped fewer than 100 tokens")
    found, shift = _scores(claim, kept, ranges, number)
    margin = (claim.band[1] - claim.band[0]) / 2 if claim.band else declared.margin
    better = "neither" if claim.band else "higher" if claim.number == "clip_ratio" else better_of(number)
    fallen = None if claim.band or claim.number == "clip_ratio" else collapses(kept, declared.collapse)
    measured = measure(found, margin)
    row = Row(claim, kept, measured, fallen, found.points, shift, better)
    if claim.number == "churn" and not _is_paper_model(kept.members[0]):
        share = f"{float(measured.D_S.mean()) + shift:.2%}"
        return replace(row, measured=None, not_tested=f"another model than the paper's: {share} here",
                       decide="the paper's model: model.path = Qwen/Qwen3-30B-A3B-Base")  # fmt: skip
    return row


def _from_batches(claim: Claim, study: Study) -> Row:
    """The claim about gradient noise and length."""
    found = noise_slopes(batch_reports(study))
    if isinstance(found, str):
        return Row(claim, not_tested=found, decide=f"gspo train {claim.recipe} --seeds 0-7, then {COMMAND}")
    seeds, against_gspo, against_reinforce = found
    return Row(claim, None, measure(against_gspo, None), second=measure(against_reinforce, None), seeds=tuple(seeds))


def _number(claim: Claim) -> Number:
    """What the preconditions look at."""
    named = {"clip_ratio": special.CLIP, "clip_range": special.CLIP, "churn": special.CHURN}
    return parse_number(f"{named[claim.number]}:area@steps" if claim.number in named else claim.number)


def _scores(claim: Claim, kept: Pair, ranges: tuple[Pair, Pair] | None, number: Number) -> tuple[Scores, float]:
    """(both arms' numbers, what was taken from their difference)."""
    shift = sum(claim.band) / 2 if claim.band else 0.0
    if claim.number == "churn":
        churn_S = special.mean_churn(kept)
        return Scores(np.full(len(churn_S), shift), churn_S), shift
    if claim.number == "clip_range" and ranges:
        (a, b), (c, d) = special.clip_ratio(kept), special.clip_ratio(ranges[1].narrow(kept.seeds))
        return Scores(b - a, d - c), shift
    if claim.number == "clip_ratio":
        a_S, b_S = special.clip_ratio(kept)
        return Scores(a_S + shift, b_S), shift
    return scores(kept, number), 0.0


def _is_paper_model(member: Member) -> bool:
    return "Qwen3-30B-A3B" in str(member.facts.config_flat.get("model.path"))


def _adjust(rows: list[Row]) -> list[dict[str, float]]:
    """Every p on which a row's verdict may rest, adjusted: those of all rows but the first are one Holm family."""
    own = [_p_values(row) for row in rows]
    family = [(index, name, p) for index, found in enumerate(own) if index for name, p in found.items()]
    for (index, name, _), p in zip(family, holm([p for _, _, p in family]), strict=True):
        own[index][name] = p
    return own


def _p_values(row: Row) -> dict[str, float]:
    found: dict[str, float] = {}
    if row.measured and row.measured.t and row.claim.rule != "fewer_collapses":
        if row.claim.rule != "inside":
            found["t"] = row.measured.t.p
        if row.second and row.second.t:
            found["t_second"] = row.second.t.p
        if row.measured.tost and row.claim.rule in ("inside", "equal", "needed", "not_ahead_needed"):
            found["equal"] = max(row.measured.tost)
    if (row.fallen and "collapses" in row.claim.rule) or (row.fallen and row.claim.rule == "needed"):
        found["collapses"] = row.fallen.p
    return found


def _told(row: Row, p: dict[str, float]) -> dict[str, Any]:
    """One row for JSON."""
    claim, m = row.claim, row.measured
    head: dict[str, Any] = {"id": claim.id, "claim": claim.text, "place": claim.place, "metric": claim.number,
                            "recipe": claim.recipe, "primary": claim is CLAIMS[0]}  # fmt: skip
    arms = {} if row.pair is None else {"baseline": row.pair.baseline, "treatment": row.pair.treatment,
                                        "differs": differs(row.pair)}  # fmt: skip
    if m is None:
        verdict = "not_tested" if row.not_tested else "inconclusive"
        return head | arms | {"verdict": verdict, "why": row.not_tested or row.decide, "decide": row.decide}
    evidence = evidence_of(m, p.get("t"))
    if "equal" in p:
        evidence = replace(evidence, p_equal=p["equal"])
    fallen = row.fallen and replace(row.fallen, p=p.get("collapses", row.fallen.p))
    also = None if row.second is None else evidence_of(row.second, p.get("t_second"))
    second = None if also is None else Outcome(judge(also, row.better), also, None)
    verdict = verdict_of(claim.rule, Outcome(judge(evidence, row.better), evidence, fallen, second))
    if also:
        arms = {"baseline": "gspo", "treatment": "grpo", "differs": []}
        head["second"] = {"baseline": "reinforce", "value": also.effect, "ci": also.ci, "p_exact": also.p_exact}
    return head | arms | {
        "verdict": verdict,
        "n": evidence.n,
        "seeds": row.pair.seeds if row.pair else list(row.seeds),
        "value": evidence.effect + row.shift,
        "ci": evidence.ci and [end + row.shift for end in evidence.ci],
        "points": row.points,
        "band": claim.band,
        "margin": None if claim.band else evidence.margin,
        "p_adjusted": p,
        "p_exact": evidence.p_exact,
        "collapses": fallen and asdict(fallen),
        "failed": [x.name for x in row.pair.members if x.facts.status == "failed"] if row.pair else [],
        "why": "",
        "decide": "" if verdict != "inconclusive" else _decide(row, evidence),
    }  # fmt: skip


def _decide(row: Row, e: Evidence) -> str:
    """What would decide an inconclusive row."""
    if e.n < FEWEST:
        return f"at least {FEWEST} seeds, better 8; there are {e.n}"
    if row.claim.rule == "fewer_collapses":
        return "a setting under which some runs collapse: a higher learning rate, more mini-batches, longer runs"
    if e.p_equal is not None and e.p_equal < 0.05:
        return "the arms are equal within the margin: more seeds will hardly show a difference"
    if e.seeds_needed is None:
        return "more seeds"
    return f"about {max(e.seeds_needed, e.n + 1)} seeds would detect the margin"
