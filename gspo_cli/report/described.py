"""What can be said of imported runs: their numbers, and nothing about the algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gspo_cli.report.judged_by import BenchNumber, Number
from gspo_cli.report.numbers import axis_range, curve_number
from gspo_cli.report.pairs import Member

NOTE = (
    "Descriptive: at least one run was imported; its start, data, budget and code are not recorded, so nothing is "
    "tested and no arm is ranked."
)


def is_imported(member: Member) -> bool:
    """Whether another trainer made the run."""
    return bool(member.facts.about.get("imported"))


def described(
    number: Number, baseline: str, treatment: str, members: Mapping[str, Mapping[int, Member]]
) -> dict[str, Any]:
    """Every arm's values of the number with mean and spread; no test, no interval, no order."""
    head = {"verdict": "descriptive", "metric": number.text, "baseline": baseline, "treatment": treatment,
            "declared": False, "reasons": []}  # fmt: skip
    values = {arm: _values(number, list(by_seed.values())) for arm, by_seed in members.items()}
    arms = [{"arm": arm, "values": found, "text": _text(found)} for arm, found in sorted(values.items())]
    steps = {
        str(m.facts.about.get("step_is", "rollout batch")) for by_seed in members.values() for m in by_seed.values()
    }
    notes = [f"A step is {' in some runs, '.join(sorted(steps))}."]
    return {**head, "sentence": NOTE, "arms": arms, "notes": notes}


def _values(number: Number, members: list[Member]) -> dict[int, float]:
    if isinstance(number, BenchNumber):
        return {}
    known = [m for m in members if m.curves and m.curves.xy(number.metric, number.budget)]
    if not known:
        return {}
    ends = axis_range(known, number)
    return {m.facts.run.seed: curve_number(m, number, ends) for m in known}


def _text(values: dict[int, float]) -> str:
    if not values:
        return "no value"
    numbers = np.array(list(values.values()))
    spread = f", standard deviation {numbers.std(ddof=1):.4g}" if len(numbers) > 1 else ""
    each = ", ".join(f"seed {seed}: {value:.4g}" for seed, value in values.items())
    return f"mean {numbers.mean():.4g}{spread} over {len(numbers)} runs ({each})"
