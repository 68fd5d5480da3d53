"""Benchmark scores of a study's runs: those logged on the way, and those of `gspo eval benchmarks`."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pandas as pd

from gspo_cli.report.curves import Panel
from gspo_cli.report.folders import Run
from gspo_cli.report.jsonl import corrupt, read_object
from gspo_cli.report.load import Log


def score_panels(metric: str) -> dict[str, Panel]:
    """The two panels of one score: the second is the paper's Figure 1."""
    return {
        "against rollout batches": Panel("steps", metric, "eval", "step"),
        "against generated tokens": Panel("tokens", metric, "eval", "tokens"),
    }


def figure_name(metric: str) -> str:
    """`score-aime24-avg32` of `aime24/avg@32`."""
    return "score-" + metric.replace("/", "-").replace("@", "")


def summaries(run: Run) -> list[dict[str, Any]]:
    """The run's evaluated checkpoints: `metric`, `step`, `value`, `standard_error`, `num_problems` and the summary
    file's hash.

    Errors: GspoError for a summary that is no such file.
    """
    found = []
    for path in sorted(run.folder.glob("eval/*/step-*/summary.json")):
        about, step = read_object(path), path.parent.name.removeprefix("step-")
        try:
            entry = {
                "run": run.folder.name,
                "metric": str(about["metric"]),
                "step": int(step),
                "value": about["average"] if about["average"] is None else float(about["average"]),
                "standard_error": about["standard_error"],
                "num_problems": int(about["num_problems"]),
            }
        except (KeyError, TypeError, ValueError) as error:
            raise corrupt(str(path), f"no summary of an evaluation: {error!r}") from error
        if entry["value"] is not None:
            found.append(entry | {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
    return found


def with_summaries(log: Log, found: list[dict[str, Any]]) -> Log:
    """The log with evaluations as further `eval` rows; a logged score of the same step and name gives way to them."""
    if not found:
        return log
    rows = pd.DataFrame(found)[["step", "metric", "value"]].assign(
        kind="eval", seq=-1, mini_batch=pd.array([pd.NA] * len(found), dtype="Int64"), count=float("nan")
    )
    frame = log.frame.astype({"kind": object, "metric": object})
    replaced = {(entry["step"], entry["metric"]) for entry in found}
    twice = [
        kind == "eval" and (step, metric) in replaced
        for kind, step, metric in zip(frame["kind"], frame["step"], frame["metric"], strict=True)
    ]
    frame = frame[~pd.Series(twice, frame.index, dtype=bool)]
    return replace(log, frame=pd.concat([frame, rows[frame.columns]], ignore_index=True))
