"""The claims that stored rollout batches decide, from what `gspo report batch` wrote beside them.

S = seeds
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gspo_cli.report.claim_list import TOKEN_FORM
from gspo_cli.report.folders import Study
from gspo_cli.report.jsonl import corrupt, read_object
from gspo_cli.report.numbers import Scores
from gspo_cli.runlog.seal import sha256_of

PLACE = "rollouts/batch-report/batch.json"
COMMAND = (
    "gspo report batch RUN/rollouts/step_000001.parquet --model START --against RUN/checkpoints/step-000001/model, for "
    "every run (START: `start_model` in its run.json)"
)
EXACT = 1e-12
"""Up to which two float64 numbers are the same."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What was measured on one run's stored batch."""

    run: str
    seed: int
    found: dict[str, Any]

    @property
    def slopes(self) -> dict[str, float] | None:
        """Algorithm -> slope of log gradient noise on log length; None where one could not be had."""
        slopes = (self.found.get("length_noise") or {}).get("slopes") or {}
        return slopes if slopes and None not in slopes.values() else None


def batch_reports(study: Study) -> list[BatchReport]:
    """Those of the study's runs that have one.

    Errors: GspoError (exit code STORAGE) for one that does not belong to the batch beside it.
    """
    found = []
    for run in study.runs:
        path = run.folder / PLACE
        if path.is_file():
            table = read_object(path)
            batch = path.parent.parent / Path(str(table.get("rollout"))).name
            if not batch.is_file() or sha256_of(batch) != table.get("rollout_sha256"):
                raise corrupt(str(path), f"it is not of {batch.name} as that file is now")
            found.append(BatchReport(run.folder.name, run.seed, table))
    return found


def noise_slopes(reports: list[BatchReport]) -> tuple[list[int], Scores, Scores] | str:
    """(seeds, GRPO's slope against GSPO's, GRPO's against REINFORCE's), runs of a seed averaged; or why there is none.

    All three slopes of a batch are of the same responses at the same parameters, so the pairs are perfect.
    """
    by_seed: dict[int, list[dict[str, float]]] = defaultdict(list)
    for report in reports:
        if report.slopes:
            by_seed[report.seed].append(report.slopes)
    if not by_seed:
        return "no run has a stored batch measured against a later policy"
    if len({report.found["rollout_sha256"] for report in reports}) < len(reports):
        return "one batch was measured for two runs"
    if len({report.found["model_sha256"] for report in reports}) > 1:
        return "the batches were sampled by different policies"
    seeds = sorted(by_seed)
    grpo_S, gspo_S, reinforce_S = (
        np.array([np.mean([slopes[name] for slopes in by_seed[seed]]) for seed in seeds])
        for name in ("grpo", "gspo", "reinforce")
    )
    return seeds, Scores(gspo_S, grpo_S), Scores(reinforce_S, grpo_S)


def token_form(reports: list[BatchReport]) -> dict[str, Any]:
    """The row of the exact claim, ready for JSON."""
    name, text, place, recipe = TOKEN_FORM
    head = {"id": name, "claim": text, "place": place, "metric": "token_form", "recipe": recipe, "primary": False}
    forms = [report.found["token_form"] for report in reports if "token_form" in report.found]
    if not forms:
        why = "exact, but no run of the study has a measured batch"
        return head | {"verdict": "not_tested", "why": why, "decide": COMMAND}
    loss, gradient = (max(form[key] for form in forms) for key in ("loss", "gradient"))
    equal = all(form["masks_equal"] for form in forms)
    holds = equal and max(loss, gradient) <= EXACT
    why = (
        f"exact, no statistics: on {len(forms)} stored batches the largest difference of the loss is {loss:.2g}, "
        f"of the gradient {gradient:.2g} of its largest entry; clip masks {'equal' if equal else 'differ'}"
    )
    largest = {"loss": loss, "gradient": gradient, "masks_equal": equal, "batches": len(forms)}
    return head | {"verdict": "supported" if holds else "contradicted", "why": why, "decide": "", "largest": largest}
