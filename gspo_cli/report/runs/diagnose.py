"""`gspo runs doctor`: the evidence of a run, from its log and its newest stored responses."""

from __future__ import annotations

import math
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.report.runs.folders import StoredRun
from gspo_cli.report.runs.log import load_log
from gspo_cli.report.runs.samples import Filter, responses, stored_steps
from gspo_cli.runlog.diagnosis import WINDOW, Evidence, Finding, diagnose
from gspo_cli.runlog.strict_json import read_object

ROLLOUT = ("length/truncated_frac", "group/zero_std_frac", "mismatch/token_floor", "adv/abs_mean", "reward/mean")
STEP = (
    "clip/token_frac_active",
    "clip/token_frac",
    "ratio/outside_frac",
    "ratio/token_log_std",
    "kl/ref_k3",
    "kl/old_k3",
    "entropy/mean",
)
NO_ANSWER = "no_answer"


def diagnose_run(run: StoredRun) -> tuple[list[Finding], dict[str, Any]]:
    """Every cause with its value in this run, and what the run is: batches read, reward over them.

    Errors: GspoError for a run without a log; (exit code STORAGE) for a file that cannot be read.
    """
    if not (run.folder / "metrics.jsonl").is_file():
        raise GspoError(f"{run.folder} has no log yet", "its first rollout batch is not done", "wait for it")
    frame = load_log(run, {"rollout": ROLLOUT, "step": STEP}).frame
    steps = sorted({int(step) for step in frame["step"]})
    if not steps:
        raise GspoError(f"{run.folder} has no rollout batch yet", "its log has no such line", "wait for the first")
    newest = frame[frame["step"] > steps[-1] - WINDOW]
    means = {str(name): float(mean) for name, mean in newest.groupby("metric", observed=True)["value"].mean().items()}
    stored = list(responses(run.folder, Filter("newest"))) if stored_steps(run.folder) else []
    config = read_object(run.folder / "config.json")
    unscored = [row.reward is None or not math.isfinite(row.reward) for row in stored]
    reasons = [row.reason for row in stored]
    # a task whose reasons are others has no share without an answer
    answers = {NO_ANSWER, "correct", "wrong"} & set(reasons)
    no_answer = reasons.count(NO_ANSWER) / len(reasons) if answers else None
    evidence = Evidence(means, config, sum(unscored) / len(unscored) if unscored else None, no_answer)
    facts = {"step": steps[-1], "batches": min(WINDOW, len(steps)), "reward": means.get("reward/mean")}
    return diagnose(evidence), facts
