"""Why a reward does not move: a table of causes, each with its metric, its threshold and the key to change.

`gspo runs doctor` reads it from a log; the warnings of a run in progress use its first rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

WINDOW = 10
"""Rollout batches over which the metrics are averaged: the newest ones."""
CUT_WARNING = 0.5
"""Share of truncated responses from which a run warns while it trains."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a run."""

    means: Mapping[str, float]
    """Metric -> mean over the newest batches that have it."""
    config: Mapping[str, Any]
    """The resolved recipe of its `config.json`."""
    unscored_frac: float | None = None
    """Share of the responses without a reward; None if unknown."""
    no_answer_frac: float | None = None
    """Share of the newest stored responses in which no answer was found; None if the task does not tell."""

    @property
    def off_policy(self) -> bool:
        """Whether any update follows another one on the same batch; else every ratio is 1."""
        minibatches = self.config["algo"].get("minibatches") or self.config["train"]["minibatches"]
        return bool(minibatches > 1 or self.config["rollout"].get("max_lag"))


@dataclass(frozen=True, slots=True)
class Cause:
    """One row of the table."""

    name: str
    what: str
    metric: str
    """What is measured, as a reader finds it in the log."""
    threshold: str
    do: str
    """The keys to change, and how."""
    value: Callable[[Evidence], float | None]
    """None where it does not apply or is not known."""
    applies: Callable[[float], bool]
    """Whether this value is beyond the threshold."""


def _mean(name: str) -> Callable[[Evidence], float | None]:
    return lambda evidence: evidence.means.get(name)


def _off_policy(name: str) -> Callable[[Evidence], float | None]:
    return lambda evidence: evidence.means.get(name) if evidence.off_policy else None


def _clipped(evidence: Evidence) -> float | None:
    """Of what has an advantage: a batch in which most groups are even would hide a clip that takes all the rest."""
    return evidence.means.get("clip/token_frac_active", evidence.means.get("clip/token_frac"))


def _outside_clip(evidence: Evidence) -> float | None:
    algo = evidence.config["algo"]
    clips = algo.get("clip") is not None or "log_clip_low" in algo
    return evidence.means.get("ratio/outside_frac") if clips and evidence.off_policy else None


def _kl_share(evidence: Evidence) -> float | None:
    """The KL penalty beside the mean size of an advantage."""
    coef, kl = evidence.config["algo"].get("kl", {}).get("coef", 0), evidence.means.get("kl/ref_k3")
    advantage = evidence.means.get("adv/abs_mean")
    return coef * kl / advantage if coef and kl is not None and advantage else None


CAUSES = (
    Cause(
        "truncated", "responses are cut off before they end", "length/truncated_frac", "at least 0.25",
        "raise `rollout.max_new_tokens`, or ask for shorter answers in the prompt",
        _mean("length/truncated_frac"), lambda value: value >= 0.25,
    ),
    Cause(
        "grader_errors", "the task fails to score responses", "responses without a reward", "at least 0.01",
        "mend `task.reward`; `gspo runs samples` shows the reasons",
        lambda evidence: evidence.unscored_frac, lambda value: value >= 0.01,
    ),
    Cause(
        "format", "no answer is found in the responses", "stored responses with reason `no_answer`", "at least 0.5",
        "ask for the form in the prompt, or start from a model that knows it (`[cold_start]`)",
        lambda evidence: evidence.no_answer_frac, lambda value: value >= 0.5,
    ),
    Cause(
        "no_signal", "all responses to a prompt get the same reward", "group/zero_std_frac", "at least 0.8",
        "raise `rollout.samples`; easier prompts if the reward is low, harder ones if it is high (`task.path`)",
        _mean("group/zero_std_frac"), lambda value: value >= 0.8,
    ),
    Cause(
        "engine_mismatch", "the engine does not sample from the model that is trained", "mismatch/token_floor",
        "at least 0.1 nat", "check `rollout.engine` and its dtype; `algo.correction` weighs the difference",
        _mean("mismatch/token_floor"), lambda value: value >= 0.1,
    ),
    Cause(
        "clipped_always", "the clip removes most of the gradient", "clip/token_frac_active", "at least 0.5",
        "widen the clip range (`gspo report clip`), lower `train.lr`, or use fewer `train.minibatches`",
        _clipped, lambda value: value >= 0.5,
    ),
    Cause(
        "clipped_never", "no ratio reaches the clip range", "ratio/outside_frac", "exactly 0",
        "narrow the clip range (`gspo report clip`; it may be another algorithm's), or use more `train.minibatches`",
        _outside_clip, lambda value: value == 0,
    ),
    Cause(
        "kl", "the KL penalty outweighs the reward", "algo.kl.coef x kl/ref_k3 / adv/abs_mean", "at least 1",
        "lower `algo.kl.coef`", _kl_share, lambda value: value >= 1,
    ),
    Cause(
        "lr_low", "the updates hardly move the policy", "ratio/token_log_std", "below 0.0001 nat",
        "raise `train.lr` (or the arm's `algo.lr`); with `train.warmup`, wait until it is over",
        _off_policy("ratio/token_log_std"), lambda value: value < 1e-4,
    ),
    Cause(
        "lr_high", "the policy moves far within one batch", "kl/old_k3", "at least 0.1 nat",
        "lower `train.lr`, or use fewer `train.minibatches`",
        _mean("kl/old_k3"), lambda value: value >= 0.1,
    ),
    Cause(
        "entropy", "the policy has become deterministic", "entropy/mean", "below 0.05 nat",
        "lower `train.lr`, add `algo.kl.coef`, or go back to an earlier checkpoint",
        _mean("entropy/mean"), lambda value: value < 0.05,
    ),
)  # fmt: skip
"""In the order in which to look: a cause further up often brings those below it about."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of the table, looked up for one run."""

    cause: Cause
    value: float | None
    found: bool = field(default=False)

    def as_dict(self) -> dict[str, Any]:
        cause = self.cause
        return {
            "cause": cause.name, "what": cause.what, "metric": cause.metric, "value": self.value,
            "threshold": cause.threshold, "found": self.found, "do": cause.do,
        }  # fmt: skip


def diagnose(evidence: Evidence) -> list[Finding]:
    """Every row of the table; a value of None where it does not apply."""
    values = [(cause, cause.value(evidence)) for cause in CAUSES]
    return [Finding(cause, value, value is not None and cause.applies(value)) for cause, value in values]


def cut_off(values: Mapping[str, float | None], responses: int, max_new_tokens: int) -> str:
    """`14 of 16 responses were cut off at 96 tokens`; empty if fewer than `CUT_WARNING` of them were."""
    share = values.get("length/truncated_frac") or 0.0
    if share < CUT_WARNING:
        return ""
    return f"{round(share * responses)} of {responses} responses were cut off at {max_new_tokens} tokens"


RAISE_LENGTH = "raise rollout.max_new_tokens"


def no_update_warning(step: int, values: Mapping[str, float | None], responses: int, max_new_tokens: int) -> str:
    """Why a rollout batch gave no update, with the key to change."""
    head = f"no update from rollout batch {step}: "
    if cut := cut_off(values, responses, max_new_tokens):
        return f"{head}{cut}, and all responses to each prompt got the same reward; {RAISE_LENGTH}"
    reward = values.get("reward/mean")
    what = "no response got a reward" if reward is None else f"all responses to each prompt got the same ({reward:.3g})"
    return f"{head}{what}, so there is nothing to learn from; `gspo runs samples` prints the responses"
