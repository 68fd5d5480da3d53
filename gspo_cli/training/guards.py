"""What stops a run that goes wrong, and what is only noted: non-finite updates, batches without signal, missing
rewards, spikes of the gradient, memory."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from gspo_cli.config import GuardConfig
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.runlog.log import RunLog
from gspo_cli.types import RolloutBatch, StepMetrics

SPIKE_WINDOW = 20  # gradient norms that a new one is compared with
MUST_BE_FINITE = ("loss", "grad/norm", "value/loss", "value/grad_norm")


@dataclass
class Guards:
    """The counts that a run's limits are about; they are part of its checkpoints."""

    limits: GuardConfig = field(default_factory=GuardConfig)
    counts: dict[str, int] = field(default_factory=lambda: {"nonfinite": 0, "silent": 0})
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=SPIKE_WINDOW))

    def before_updates(self, batch: RolloutBatch) -> None:
        """Errors: GspoError (exit code 5) when too many rewards are missing because the task failed."""
        scores = [score for group in (*batch.groups, *batch.dropped) for score in group.scores]
        missing = [score.reason for score in scores if score.value is None]
        if len(missing) > self.limits.unscored_frac * len(scores):
            raise GspoError(
                f"{len(missing)} of {len(scores)} responses of rollout batch {batch.step} could not be scored",
                f"the first reason is: {missing[0]}; guards.unscored_frac = {self.limits.unscored_frac}",
                "mend the task's reward; no update was made from this batch",
                ExitCode.ENGINE,
            )

    def after_updates(self, log: RunLog, batch: RolloutBatch, lines: list[StepMetrics]) -> None:
        """Counts, notes as events, and stops.

        Errors: GspoError (exit code 4) at a limit; the log holds the batch, the weights are those before the update
        that was refused.
        """
        prompts = [group.problem.id for group in batch.groups]
        for index, values in enumerate(line.values for line in lines):
            if bad := nonfinite(values):
                self.counts["nonfinite"] += 1
                found = {name: repr(values[name]) for name in bad}
                log.event("nonfinite", step=batch.step, mini_batch=index, values=found, prompts=prompts)
                self.stop_at_limit(batch.step, index, found)
            elif norm := values.get("grad/norm"):
                if is_spike(self.norms, norm, self.limits.spike_z):
                    log.event("gradient_spike", step=batch.step, mini_batch=index, norm=norm, prompts=prompts)
                self.norms.append(norm)
        silent = not any(line.values["update/applied"] or nonfinite(line.values) for line in lines)
        self.counts["silent"] = self.counts["silent"] + 1 if silent else 0
        if silent:
            log.event("no_signal", step=batch.step, in_a_row=self.counts["silent"])
        if self.counts["silent"] >= self.limits.no_signal_batches:
            raise GspoError(
                f"{self.counts['silent']} rollout batches in a row gave no update",
                "all responses to a prompt got the same reward, or all were left out, so there is nothing to learn "
                f"from; guards.no_signal_batches = {self.limits.no_signal_batches}",
                "look at the rewards (rollout.store = 1 keeps the batches); easier or harder prompts, or more samples",
                ExitCode.GUARD,
            )

    def stop_at_limit(self, step: int, mini_batch: int, found: dict[str, str]) -> None:
        """Errors: GspoError (exit code 4)."""
        count, limit = self.counts["nonfinite"], self.limits.nonfinite_limit
        if count >= limit:
            raise GspoError(
                f"the loss or the gradient of rollout batch {step} is not finite",
                f"{', '.join(f'{name} {value}' for name, value in found.items())} in mini-batch {mini_batch + 1}; that "
                f"update was not made ({count} of at most {limit})",
                "lower algo.lr, or look at the batch: the log holds everything up to it; a resume repeats it exactly",
                ExitCode.GUARD,
            )


def nonfinite(values: dict[str, float | None]) -> list[str]:
    """The names of what should have been finite in a line of one update."""
    return [n for n in MUST_BE_FINITE if (value := values.get(n)) is not None and not math.isfinite(value)]


def is_spike(before: deque[float], norm: float, z: float) -> bool:
    """Whether a norm lies far above the last ones."""
    if len(before) < SPIKE_WINDOW:
        return False
    return norm > statistics.fmean(before) + z * statistics.stdev(before)


@contextmanager
def enough_memory(doing: str, hint: str) -> Iterator[None]:
    """Turns exhausted memory into an error that names the setting to change; the batch is never made smaller in
    silence.

    Errors: GspoError (exit code 1).
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch's own is a RuntimeError
        if not is_memory(error):
            raise
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise GspoError(f"memory ran out while {doing}", why, hint, ExitCode.UNEXPECTED) from error


def is_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: of the GPU, or of the machine."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error)
