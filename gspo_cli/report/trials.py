"""What a study of tuning trials says: the best setting of each arm, and what finding it cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from gspo_cli.report.folders import Study
from gspo_cli.report.judged_by import CurveNumber, better_of, parse_number
from gspo_cli.report.numbers import axis_range, curve_number, last_value
from gspo_cli.report.pairs import Member, load_members


def choose(study: Study, metric: str, trials: dict[str, Any]) -> dict[str, Any]:
    """Arm -> its best trial by the mean of `metric` over the seeds, number of trials, seeds and cost.

    A trial with a run that failed has its last value carried on, as in a comparison; one without a value is last.
    """
    number = parse_number(metric)
    members = load_members(study, number)
    everyone = [m for label in trials for m in members.get(label, {}).values() if m.curves]
    ends = axis_range(everyone, number) if isinstance(number, CurveNumber) else (0.0, 0.0)

    def score(member: Member) -> float:
        if isinstance(number, CurveNumber):
            found = member.curves and member.curves.xy(number.metric, number.budget)
            return curve_number(member, number, ends) if found else np.nan
        return last_value(member, number.metric)

    sign = -1.0 if better_of(number) == "lower" else 1.0
    table: dict[str, dict[str, float]] = {}
    for label, trial in trials.items():
        values = [score(m) for m in members.get(label, {}).values()]
        table.setdefault(trial["arm"], {})[label] = float(np.mean(values)) if values else np.nan
    return {arm: _chosen(by_trial, sign, trials, members) for arm, by_trial in table.items()}


def _chosen(
    by_trial: dict[str, float], sign: float, trials: dict[str, Any], members: dict[str, dict[int, Member]]
) -> dict[str, Any]:
    ranked = sorted(by_trial, key=lambda label: (np.isnan(by_trial[label]), -sign * by_trial[label], label))
    runs = [m for label in by_trial for m in members.get(label, {}).values()]
    cost = {axis: sum(m.curves.total(axis) or 0.0 for m in runs if m.curves) for axis in ("tokens", "seconds")}
    return {
        "trials": len(by_trial),
        "seeds": sorted({seed for label in by_trial for seed in members.get(label, {})}),
        "chosen": trials[ranked[0]]["chosen"],
        "gen_tokens": cost["tokens"],
        "seconds": round(cost["seconds"], 3),
        "study": runs[0].facts.run.folder.resolve().parent.name if runs else None,
        "scores": [
            {"trial": label, **trials[label]["chosen"], "score": None if np.isnan(by_trial[label]) else by_trial[label]}
            for label in ranked
        ],
    }
