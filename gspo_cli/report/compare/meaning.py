"""Which settings of an arm change what a metric means, so that two arms' values are not of the same quantity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gspo_cli.report.runs.curves import QUERIES
from gspo_cli.report.runs.metric_spec import REWARD, BenchmarkMetric, MetricSpec
from gspo_cli.report.runs.pairs import Pair, RunRecord
from gspo_cli.runlog.schema import metric

MOST_UNSCORED = 0.01
"""Share of unscored responses above which a mean over the scored ones may be a mean over the easy ones."""
SAMPLED = (
    "group/dropped_frac", "compute/", "moe/", "lr", "kl/sampler", "mismatch/", "lag/", "entropy/",
)  # fmt: skip
"""Prefixes of what dynamic sampling leaves as it is: over all groups, on the probe, about engine and trainer, or only
over rows with an advantage anyway."""
ON_RATIOS = ("ratio/", "kl/old", "clip/", "gate/", "weight/")
ON_LOSS_TOKENS = (*ON_RATIOS, "entropy/", "kl/", "mismatch/", "lag/", "correction/", "value/", "loss", "grad/")
ON_ADVANTAGES = (
    "adv/",
    "length/mean_pos",
    "length/mean_neg",
    "loss",
    "grad/",
    "update/skipped_rows_frac",
    "gate/mean_",
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """A setting, and the metrics that mean something else under it."""

    key: str
    affects: Callable[[str], bool]
    """Whether a logged metric changes its meaning with this key."""
    why: str
    default: Any = None
    instead: str = "judge by reward/mean, or by a benchmark"


def _is_eval(name: str) -> bool:
    return "eval" in metric(name).lines


def _any_of(prefixes: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda name: name.startswith(prefixes)


MEANINGS = (
    Meaning("algo.dynamic_sampling", lambda name: not (name == REWARD or name.startswith(SAMPLED) or _is_eval(name)),
            "it covers only the groups that dynamic sampling kept", False),
    Meaning("algo.truncation", _any_of(ON_LOSS_TOKENS), "masked responses are not among the loss tokens", "keep"),
    Meaning("algo.overlong_cache_frac", _any_of(ON_ADVANTAGES), "advantages contain the penalty on long responses"),
    Meaning("algo.old_log_probs", _any_of(ON_RATIOS), "ratios are taken to another old policy", "trainer"),
    Meaning("algo.name", lambda name: name == "loss", "each algorithm has its own objective", "gspo"),
    Meaning("rollout.max_lag", lambda name: not _is_eval(name),
            "the value of a step belongs to weights of another age", 0, "judge by a benchmark"),
)  # fmt: skip
"""Also where `report.tuned` lets the key differ. To add a setting, add a row here and in docs/compare.md."""


def changed_meanings(pair: Pair, spec: MetricSpec) -> Iterator[tuple[str, str, str, str]]:
    """(what, the baseline's value, the treatment's, what to do) for every setting under which the metric means
    something else in one arm than in the other."""
    if isinstance(spec, BenchmarkMetric):
        return
    for meaning in (m for m in MEANINGS if m.affects(spec.metric)):
        sides = [{str(_value(record, meaning)) for record in side.values()} for side in (pair.left, pair.right)]
        if sides[0] != sides[1] and all(sides):
            left, right = (" or ".join(sorted(side)) for side in sides)
            yield f"what {spec.metric} means: {meaning.key} ({meaning.why})", left, right, meaning.instead


def _value(record: RunRecord, meaning: Meaning) -> Any:
    value = record.facts.config_flat.get(meaning.key)
    return meaning.default if value is None else value


def unscored_share(record: RunRecord) -> float | None:
    """The share of sampled responses without a reward; None where the log has no counts."""
    if record.curves is None:
        return None
    scored = record.curves.counts[REWARD]
    queries, samples = record.curves.values[QUERIES], record.facts.config_flat.get("rollout.samples")
    if not len(scored) or not len(queries) or scored.isna().any() or not isinstance(samples, int):
        return None
    return max(0.0, 1 - float(scored.sum()) / (float(queries.iloc[-1]) * samples))
