"""`gspo runs doctor`: why a reward does not move, from a run's log and its newest stored responses.

A table of causes, each with its metric, its threshold and the key to change.
"""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.report.runs.folders import StoredRun
from gspo_cli.report.runs.log import load_log
from gspo_cli.report.runs.samples import Filter, responses, stored_steps
from gspo_cli.runlog.strict_json import read_object

WINDOW = 10
"""Rollout batches over which the metrics are averaged: the newest ones."""
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
UNSCORED, UNANSWERED = "responses without a reward", "stored responses with reason `no_answer`"
KL_SHARE = "algo.kl.coef x kl/ref_k3 / adv/abs_mean"
BEYOND = {"at least": operator.ge, "below": operator.lt, "exactly": operator.eq}


@dataclass(frozen=True, slots=True)
class Cause:
    """One row of the table."""

    name: str
    what: str
    metric: str
    """What is measured, as a reader finds it in the log."""
    side: str
    """Where of `limit` the value lies if this is the cause: a key of `BEYOND`."""
    limit: float
    unit: str
    do: str
    """The keys to change, and how."""

    @property
    def threshold(self) -> str:
        """In words: `at least 0.1 nat`."""
        return f"{self.side} {self.limit:g} {self.unit}".rstrip()


CAUSES = (
    Cause(
        "truncated", "responses are cut off before they end", "length/truncated_frac", "at least", 0.25, "",
        "raise `rollout.max_new_tokens`, or ask for shorter answers in the prompt",
    ),
    Cause(
        "grader_errors", "the task fails to score responses", UNSCORED, "at least", 0.01, "",
        "mend `task.reward`; `gspo runs samples` shows the reasons",
    ),
    Cause(
        "format", "no answer is found in the responses", UNANSWERED, "at least", 0.5, "",
        "ask for the form in the prompt, or start from a model that knows it (`[cold_start]`)",
    ),
    Cause(
        "no_signal", "all responses to a prompt get the same reward", "group/zero_std_frac", "at least", 0.8, "",
        "raise `rollout.samples`; easier prompts if the reward is low, harder ones if it is high (`task.path`)",
    ),
    Cause(
        "engine_mismatch", "the engine does not sample from the model that is trained", "mismatch/token_floor",
        "at least", 0.1, "nat", "check `rollout.engine` and its dtype; `algo.correction` weighs the difference",
    ),
    Cause(
        "clipped_always", "the clip removes most of the gradient", "clip/token_frac_active", "at least", 0.5, "",
        "widen the clip range (`gspo report clip`), lower `train.lr`, or use fewer `train.minibatches`",
    ),
    Cause(
        "clipped_never", "no ratio reaches the clip range", "ratio/outside_frac", "exactly", 0, "",
        "narrow the clip range (`gspo report clip`; it may be another algorithm's), or use more `train.minibatches`",
    ),
    Cause("kl", "the KL penalty outweighs the reward", KL_SHARE, "at least", 1, "", "lower `algo.kl.coef`"),
    Cause(
        "lr_low", "the updates hardly move the policy", "ratio/token_log_std", "below", 1e-4, "nat",
        "raise `train.lr` (or the arm's `algo.lr`); with `train.warmup`, wait until it is over",
    ),
    Cause(
        "lr_high", "the policy moves far within one batch", "kl/old_k3", "at least", 0.1, "nat",
        "lower `train.lr`, or use fewer `train.minibatches`",
    ),
    Cause(
        "entropy", "the policy has become deterministic", "entropy/mean", "below", 0.05, "nat",
        "lower `train.lr`, add `algo.kl.coef`, or go back to an earlier checkpoint",
    ),
)  # fmt: skip
"""In the order in which to look: a cause further up often brings those below it about."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of the table, looked up for one run."""

    cause: Cause
    value: float | None
    """None where it does not apply or is not known."""
    found: bool

    def as_dict(self) -> dict[str, Any]:
        cause = self.cause
        return {
            "cause": cause.name, "what": cause.what, "metric": cause.metric, "value": self.value,
            "threshold": cause.threshold, "found": self.found, "do": cause.do,
        }  # fmt: skip


def diagnose(
    means: Mapping[str, float], config: Mapping[str, Any], unscored: float | None, unanswered: float | None
) -> list[Finding]:
    """Every row of the table.

    `means` = of each metric over the newest batches that have it; `config` = the resolved recipe; `unscored`,
    `unanswered` = shares of the newest stored responses without a reward, and without an answer where the task tells.
    """
    algo, advantage = config["algo"], means.get("adv/abs_mean")
    coef, kl = algo.get("kl", {}).get("coef", 0), means.get("kl/ref_k3")
    # unless an update follows another one on the same batch, every ratio is 1; of an imported run it is not known
    minibatches = algo.get("minibatches") or config["train"].get("minibatches", 1)
    off_policy = minibatches > 1 or config.get("rollout", {}).get("max_lag")
    clips = algo.get("clip") is not None or "log_clip_low" in algo
    values = {
        **means,
        UNSCORED: unscored,
        UNANSWERED: unanswered,
        # of all tokens, a batch in which most groups are even would hide a clip that takes all the rest
        "clip/token_frac_active": means.get("clip/token_frac_active", means.get("clip/token_frac")),
        "ratio/outside_frac": means.get("ratio/outside_frac") if clips and off_policy else None,
        "ratio/token_log_std": means.get("ratio/token_log_std") if off_policy else None,
        KL_SHARE: coef * kl / advantage if coef and kl is not None and advantage else None,
    }
    return [
        Finding(cause, value := values.get(cause.metric), value is not None and BEYOND[cause.side](value, cause.limit))
        for cause in CAUSES
    ]


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
    stored = responses(run.folder, Filter("newest")) if stored_steps(run.folder) else []
    config = read_object(run.folder / "config.json")
    reasons = [row.reason for row in stored]
    # a task whose reasons are others has no share without an answer
    tells = not {"no_answer", "correct", "wrong"}.isdisjoint(reasons)
    findings = diagnose(
        means,
        config,
        unscored=fmean(row.reward is None or not math.isfinite(row.reward) for row in stored) if stored else None,
        unanswered=reasons.count("no_answer") / len(reasons) if tells else None,
    )
    facts = {"step": steps[-1], "batches": min(WINDOW, len(steps)), "reward": means.get("reward/mean")}
    return findings, facts
