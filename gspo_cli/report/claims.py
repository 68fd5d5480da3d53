"""Puts the paper's claims to the test of a study: each supported, contradicted, inconclusive or not tested here."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from gspo_cli.report import claim_numbers as special
from gspo_cli.report.claim_arms import differs
from gspo_cli.report.claim_batches import batch_reports, token_form
from gspo_cli.report.claim_list import CLAIMS
from gspo_cli.report.claim_rows import Row, row_of
from gspo_cli.report.claim_rules import Outcome, verdict_of
from gspo_cli.report.compare import report_config
from gspo_cli.report.compared import evidence_of
from gspo_cli.report.folders import Study
from gspo_cli.report.pairs import load_members
from gspo_cli.report.sources import write_sources
from gspo_cli.report.stats_pairs import holm
from gspo_cli.report.verdict import FEWEST, Evidence, judge
from gspo_cli.runlog.fs import write_text

FILE = "claims.json"
CURVES = {"rollout": {"reward/mean"}, "step": {special.CLIP, special.CHURN}}


def claims(study: Study) -> dict[str, Any]:
    """Every claim's row, ready for JSON; also written to `claims.json` with its side file.

    Errors: GspoError for corrupt files, or a study whose recipe declares nothing.
    """
    declared = report_config(study)
    members = load_members(study, None, CURVES)
    rows = [row_of(claim, study, members, declared) for claim in CLAIMS]
    told = [_told(row, adjusted) for row, adjusted in zip(rows, _adjust(rows), strict=True)]
    told.append(token_form(batch_reports(study)))
    found = {"study": study.folder.name, "rows": told}
    write_text(study.folder / FILE, json.dumps(found, indent=1, sort_keys=True, allow_nan=False) + "\n")
    everything = [member for by_seed in members.values() for member in by_seed.values()]
    used = {m.name for row in rows if row.measured and row.pair for m in row.pair.members}
    unused = {m.name: "no claim tested rests on it" for m in everything if m.name not in used}
    write_sources(study.folder / FILE, everything, unused)
    return found


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
