"""`gspo report clip`: what a study's clip ranges discard, and the ranges that would discard a wanted share.

A clip range means nothing without the spread of the ratios that it meets, and that spread depends on the length of the
responses: the mean of L independent log-ratios spreads as 1 / sqrt(L).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.report.runs.folders import Study
from gspo_cli.report.runs.log import Log, load_log
from gspo_cli.runlog.strict_json import read_object
from gspo_cli.stats.clip_share import NOTHING, TOO_MUCH, range_for, scaled_range, share_discarded

TARGETS = (0.01, 0.05, 0.15, 0.33)
"""Shares for which a range is proposed."""
WANTED = {
    "rollout": {"length/mean"},
    "update": {"ratio/seq_log_std", "ratio/token_log_std", "clip/seq_frac", "clip/token_frac"},
}
SEQUENCE = {"gspo", "gspo_token", "luspo"}
"""Algorithms whose clip acts on a response's ratio; for every other one it acts on a token's."""


@dataclass(frozen=True, slots=True)
class ClipRange:
    """One arm's range against what it met in off-policy mini-batches: all but the first of each rollout batch."""

    arm: str
    algorithm: str
    unit: str
    """What has a ratio: `token` or `sequence`."""
    low: float
    high: float
    length: float
    """Mean response length in tokens."""
    log_std: float
    """Standard deviation of the log-ratio, nats; root mean square over mini-batches."""
    measured: float
    """Share of responses (sequence) or tokens (token) that the clip discarded."""
    predicted: float
    """The share for normal log-ratios around 0 whose sign has nothing to do with the advantage's."""
    by_length: float | None
    """The published range scaled to this length as 1 / sqrt(L); None for token ratios, which do not depend on it."""
    proposals: dict[float, tuple[float, float]]
    """Wanted share -> the range (low, high) that would discard it, under the same assumption."""
    verdict: str
    """A sentence."""


def clip_ranges(study: Study) -> list[ClipRange]:
    """One entry for each arm with a hard clip and off-policy mini-batches, its seeds pooled.

    Errors: GspoError if no arm has both, or if a log is corrupt.
    """
    arms: dict[str, list[Log]] = {}
    for run in study.runs:
        if (run.folder / "metrics.jsonl").is_file():
            arms.setdefault(run.arm, []).append(load_log(run, WANTED, counts=False))
    found = [one for arm, logs in arms.items() if (one := _of_arm(arm, logs)) is not None]
    if not found:
        raise GspoError(
            f"no clip range to judge in {study.folder}",
            "no arm has both a hard clip and a second mini-batch per rollout batch, where ratios leave 1",
            "name a study of grpo, gspo or another clipped algorithm with train.minibatches of 2 or more",
        )
    return found


def _of_arm(arm: str, logs: Sequence[Log]) -> ClipRange | None:
    algo = read_object(logs[0].run.folder / "config.json").get("algo", {})
    clip, name = algo.get("clip"), logs[0].run.algorithm
    unit = "sequence" if name in SEQUENCE else "token"
    stds = _values(logs, f"ratio/{'seq' if unit == 'sequence' else 'token'}_log_std")
    clipped = _values(logs, f"clip/{'seq' if unit == 'sequence' else 'token'}_frac")
    lengths = _values(logs, "length/mean", first=True)
    if not isinstance(clip, dict) or not stds or not clipped or not lengths:
        return None
    low, high = float(clip["low"]), float(clip["high"])
    std, length = sqrt(sum(v * v for v in stds) / len(stds)), sum(lengths) / len(lengths)
    measured = sum(clipped) / len(clipped)
    return ClipRange(
        arm, name, unit, low, high, length, std, measured, share_discarded(low, high, std),
        scaled_range(length) if unit == "sequence" else None,
        {share: range_for(share, std) for share in TARGETS}, _verdict(measured, unit),
    )  # fmt: skip


def _values(logs: Sequence[Log], metric: str, first: bool = False) -> list[float]:
    """The finite values of a metric; of update lines only those after the first of a rollout batch."""
    values: list[float] = []
    for log in logs:
        rows = log.frame[log.frame["metric"] == metric]
        if not first:
            rows = rows[rows["mini_batch"].fillna(0) > 0]
        values += [float(v) for v in rows["value"] if abs(v) < float("inf")]
    return values


def _verdict(measured: float, unit: str) -> str:
    what = "responses" if unit == "sequence" else "tokens"
    if measured > TOO_MUCH:
        return f"It discards {100 * measured:.0f} % of the {what}, more than a third: much of every batch is not used."
    if measured < NOTHING:
        return f"It discards {100 * measured:.2g} % of the {what}: it might as well not be there."
    return f"It discards {100 * measured:.1f} % of the {what}."


def rows(found: Sequence[ClipRange]) -> list[dict[str, Any]]:
    """As JSON holds them."""
    return [
        {
            "arm": one.arm, "algorithm": one.algorithm, "unit": one.unit, "low": one.low, "high": one.high,
            "length_mean": one.length, "log_std": one.log_std, "measured": one.measured, "predicted": one.predicted,
            "scaled_by_length": one.by_length,
            "proposals": {f"{share:g}": {"low": low, "high": high} for share, (low, high) in one.proposals.items()},
            "verdict": one.verdict,
        }
        for one in found
    ]  # fmt: skip
