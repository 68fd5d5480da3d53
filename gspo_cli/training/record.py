"""Log lines of one rollout batch: `rollout`, one `update` a mini-batch, `step` with the pooled values."""

from __future__ import annotations

from collections import Counter

from torch import Tensor

from gspo_cli.runlog.log import RunLog
from gspo_cli.runlog.schema import NOT_APPLICABLE
from gspo_cli.training.accumulate import Accumulator
from gspo_cli.training.compute import batch_flops, real_positions
from gspo_cli.training.merge import merged
from gspo_cli.training.rollout_metrics import as_gap, mismatch_metrics, rollout_metrics
from gspo_cli.training.routes import fed, sampler_route_metrics
from gspo_cli.training.stopwatch import Stopwatch
from gspo_cli.training.update import Learner, log_bounds
from gspo_cli.types import MiniBatch, Reduced, RolloutBatch, StepMetrics


class Totals:
    """The compute/* counters of a run."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, **amounts: int) -> StepMetrics:
        """Adds to the counters and gives those named as metrics."""
        self.counts.update(amounts)
        return StepMetrics({f"compute/{name}": self.counts[name] for name in amounts})


def record_batch(
    log: RunLog,
    totals: Totals,
    clock: Stopwatch,
    learner: Learner,
    batch: RolloutBatch,
    advantages_B: Tensor,
    mini_batches: list[MiniBatch],
    updates: list[Accumulator],
    extra: dict[str, Reduced],
    sampled: list[RolloutBatch],
) -> tuple[dict[str, float | None], list[StepMetrics]]:
    """Writes the lines and gives the pooled values with the times, for display, and the `update` lines.

    `sampled` = the rollout batches that the time for sampling was spent on.
    """
    rollout, own, stale = Accumulator(), Accumulator(), any(batch.lags)
    rollout.add(rollout_metrics(batch, advantages_B))
    mismatch = mismatch_metrics(mini_batches, log_bounds(learner.params))
    own.add(as_gap(mismatch) if stale else mismatch)
    if learner.routing is not None and not stale:
        own.add(sampler_route_metrics(mini_batches, learner.routing.missing))
    rollout.add(merged(own, learner.ranks).values)
    rollout.add(extra)
    pooled = Accumulator()
    for metrics in updates:
        pooled.add({name: value for name, value in metrics.values.items() if name != "lr"})

    layers = learner.routing.layers if learner.routing else ()
    rollout_line, step_line = rollout.result(), complete(pooled.result(layers))
    num_groups, num_responses, num_tokens = amounts(batch)
    rollout_line.update(totals.add(queries=num_groups, responses=num_responses, gen_tokens=num_tokens))
    micro_batches = [m for mini in mini_batches for m in mini.own]
    passes = [float(real_positions(mini.own)) for mini in mini_batches]
    trained, held, *passes = learner.ranks.total(
        [float(sum(int(m.mask_BT.sum()) for m in micro_batches)), float(sum(map(fed, micro_batches))), *passes]
    )
    update_lines = [complete(metrics.result()) for metrics in updates]
    step_line.update(
        totals.add(
            train_tokens=int(trained),
            updates=sum(int(line.values["update/applied"] or 0) for line in update_lines),
            flops=batch_flops(learner, batch, [int(positions) for positions in passes]),
        )
    )
    times = clock.reset()
    times |= {"padding_frac": 1 - sum(passes) / held if held else 0.0}
    if sampled:  # with `max_lag`, the last batches wait in the queue already
        times |= {"gen_tokens_per_s": sum(amounts(one)[2] for one in sampled) / times["rollout_s"]}
    log.line("rollout", batch.step, rollout_line, perf=times)
    for index, line in enumerate(update_lines):
        log.line("update", batch.step, line, mini_batch=index)
    log.line("step", batch.step, step_line)
    log.flush()
    return rollout_line.values | step_line.values | times, update_lines


def amounts(batch: RolloutBatch) -> tuple[int, int, int]:
    """Groups, responses and tokens sampled for a batch, those put aside included."""
    groups = (*batch.groups, *batch.dropped)
    samples = [sample for group in groups for sample in group.samples]
    return len(groups), len(samples), sum(len(sample.token_ids) for sample in samples)


def complete(line: StepMetrics) -> StepMetrics:
    """A line with null for what has no meaning in this run, and with what follows from two of its values."""
    for name in NOT_APPLICABLE:
        line.values.setdefault(name, None)
    residual, spread = line.values.get("value/residual_std"), line.values.get("value/return_std")
    if residual is not None and spread:
        line.values["value/explained_var"] = 1 - (residual / spread) ** 2
    return line
