"""One claim's number in a study: the pair of arms, what they allow to be measured, or why nothing does."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gspo_cli.config import ReportConfig
from gspo_cli.report import claim_numbers as special
from gspo_cli.report.claim_arms import Members, is_moe, pair_of
from gspo_cli.report.claim_batches import COMMAND, batch_reports, noise_slopes
from gspo_cli.report.claim_list import Claim
from gspo_cli.report.collapses import Collapses, collapses
from gspo_cli.report.folders import Study
from gspo_cli.report.judged_by import BenchNumber, Number, better_of, parse_number
from gspo_cli.report.numbers import Measured, Scores, measure, scores
from gspo_cli.report.pairs import Member, Pair, load_members
from gspo_cli.report.preconditions import failures


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


def row_of(claim: Claim, study: Study, members: Members, declared: ReportConfig) -> Row:
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
    if not len(found.treatment_S):
        return Row(claim, kept, not_tested="no run made an update", decide=train)
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
