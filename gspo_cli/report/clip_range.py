"""`gspo report clip`: what a study's clip ranges discard, and the ranges that would discard a wanted share.

A clip range means nothing without the spread of the ratios that it meets, and that spread depends on the length of the
responses: the mean of L independent log-ratios spreads as 1 / sqrt(L).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import expm1, isfinite
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.report.runs.facts import read_events
from gspo_cli.report.runs.folders import StoredRun, Study
from gspo_cli.report.runs.log import Log, load_log
from gspo_cli.runlog.strict_json import read_object
from gspo_cli.stats.clip_share import (
    NEEDED,
    NOTHING,
    SCALED,
    TAIL,
    TOO_MUCH,
    dual_clip_advice,
    off_policy,
    own_keys,
    range_for,
    scaled_range,
    share_discarded,
)

TARGETS = (0.01, 0.05, 0.15, 0.33)
"""Shares for which a range is proposed."""
WANTED = {"rollout": {"length/mean"}, "update": {"ratio/seq_log_std", "ratio/token_log_std", TAIL, *NEEDED}}
SEQUENCE = {"gspo", "gspo_token", "luspo"}
"""Algorithms whose clip acts on a response's ratio, for runs too short to have recorded it."""


@dataclass(frozen=True, slots=True)
class ClipRange:
    """One arm's range against what it met in off-policy mini-batches: all but the first of each rollout batch."""

    arm: str
    algorithm: str
    unit: str
    """What the clip acts on: `token` or `sequence`."""
    range: dict[str, float]
    """As keys of `[algo]`: the lower end, the upper end."""
    length_mean: float
    """Mean response length in tokens."""
    log_std: float
    """Standard deviation of the log-ratio, nats; root mean square over mini-batches."""
    measured: float
    """Share of the responses (sequence) or tokens (token) with an advantage that the clip discarded."""
    predicted: float
    """The share for normal log-ratios around 0 whose sign has nothing to do with the advantage's."""
    scaled_by_length: float | None
    """GSPO's published range scaled to this length as 1 / sqrt(L); None for other algorithms."""
    proposals: dict[float, dict[str, float]]
    """Wanted share -> the range that would discard it, under the same assumption, likewise."""
    negative_tail: float | None
    """Share of the gradient on tokens with a negative advantage that weigh more than 3 times as much as at ratio 1."""
    verdict: str
    """One or two sentences."""

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it: ranges as `low` and `high`, and the `keys` of `[algo]` that these are."""
        table = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "range"}
        proposals = {f"{share:g}": _ends(keys) for share, keys in self.proposals.items()}
        return table | {"keys": list(self.range), **_ends(self.range), "proposals": proposals}


def _ends(range_: dict[str, float]) -> dict[str, float]:
    return dict(zip(("low", "high"), range_.values(), strict=True))


def clip_ranges(study: Study) -> list[ClipRange]:
    """One entry for each arm with a hard clip and off-policy mini-batches, its seeds pooled.

    Errors: GspoError if no arm has both, or if a log is corrupt.
    """
    arms: dict[str, list[Log]] = {}
    for run in study.runs:
        if (run.folder / "metrics.jsonl").is_file():
            arms.setdefault(run.arm, []).append(load_log(run, WANTED))
    found = [one for arm, logs in arms.items() if (one := _of_arm(arm, logs)) is not None]
    if not found:
        raise GspoError(
            f"no clip range to judge in {study.folder}",
            "no arm has both a hard clip and an advantage in a batch's second mini-batch, where ratios leave 1",
            "name a study of a clipped algorithm with train.minibatches of 2 or more, or train for more batches",
        )
    return found


def _of_arm(arm: str, logs: Sequence[Log]) -> ClipRange | None:
    algo = read_object(logs[0].run.folder / "config.json").get("algo", {})
    bounds, name, unit = _bounds(algo), logs[0].run.algorithm, _unit(logs[0].run)
    met = off_policy(unit, (line for log in logs for line in _off_policy(log)))
    lengths = [float(v) for log in logs for v in log.frame[log.frame["metric"] == "length/mean"]["value"].dropna()]
    if bounds is None or met is None or not lengths:
        return None
    std, length = met.log_std, sum(lengths) / len(lengths)
    return ClipRange(
        arm, name, unit, own_keys(algo, *bounds), length, std, met.discarded, share_discarded(*bounds, std),
        scaled_range(length) if name in SCALED else None,
        {share: own_keys(algo, *range_for(share, std)) for share in TARGETS},
        met.tail, _verdict(met.discarded, unit, dual_clip_advice(met.tail, algo)),
    )  # fmt: skip


def _bounds(algo: dict[str, Any]) -> tuple[float, float] | None:
    """An arm's range (low, high) for a ratio; None without a hard clip."""
    if "log_clip_low" in algo:
        return -expm1(-algo["log_clip_low"]), expm1(algo["log_clip_high"])
    clip = algo.get("clip")
    return (float(clip["low"]), float(clip["high"])) if isinstance(clip, dict) else None


def _unit(run: StoredRun) -> str:
    """What a run's clip acts on, as its training recorded it."""
    recorded = (str(event["unit"]) for event in read_events(run.folder) if event.get("event") == "clip_range")
    return next(recorded, "sequence" if run.algorithm in SEQUENCE else "token")


def _off_policy(log: Log) -> list[dict[str, float]]:
    """The finite metrics of each update line after the first of a rollout batch."""
    rows = log.frame[log.frame["mini_batch"].fillna(0) > 0]
    found: dict[tuple[int, int], dict[str, float]] = {}
    for step, index, metric, value in zip(*(rows[c] for c in ("step", "mini_batch", "metric", "value")), strict=True):
        if isfinite(value):
            found.setdefault((step, index), {})[str(metric)] = float(value)
    return list(found.values())


def _verdict(measured: float, unit: str, dual_clip: str | None) -> str:
    what = f"{'responses' if unit == 'sequence' else 'tokens'} with an advantage"
    if measured > TOO_MUCH:
        said = f"discards {100 * measured:.0f} % of the {what}, more than a third: much of every batch is not used"
    elif measured < NOTHING:
        said = f"discards {100 * measured:.2g} % of the {what}: it might as well not be there"
    else:
        said = f"discards {100 * measured:.1f} % of the {what}"
    return f"It {said}." + (f" {dual_clip}." if dual_clip else "")
