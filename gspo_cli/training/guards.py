"""What stops a run that goes wrong, or warns of it: non-finite updates, no signal, missing memory, collapse."""

import json
import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from gspo_cli.config import GuardConfig, Recipe
from gspo_cli.errors import ExitCode, GspoError, reason
from gspo_cli.events import Emit, Warned
from gspo_cli.runlog.collapse import RewardHistory, batch_reward, collapse_window
from gspo_cli.runlog.log import RunLog
from gspo_cli.types import RolloutBatch, StepMetrics

MUST_BE_FINITE = ("loss", "grad/norm", "value/loss", "value/grad_norm")
SPIKE_WINDOW = 20
"""Gradient norms that a new one is compared with."""

SIGN_FACTOR = 10.0
"""How far entropy or mismatch must be from its first value to be a sign."""
SIGNS = {"entropy/mean": -1, "kl/sampler_trainer_k3": 1}
"""Metric -> 1 if a high value is a sign of collapse, -1 if a low one."""
CUT_WARNING = 0.5
"""Share of truncated responses from which a run warns while it trains."""
RAISE_LENGTH = "raise rollout.max_new_tokens"


@contextmanager
def enough_memory(doing: str, hint: str) -> Iterator[None]:
    """Turns exhausted memory into an error that names the setting to change; a batch is never made smaller silently.

    Errors: GspoError (exit code 1).
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch's own is a RuntimeError
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "allocate memory" not in str(error):
            raise
        raise GspoError(f"memory ran out while {doing}", reason(error), hint, ExitCode.UNEXPECTED) from error


@dataclass
class Guards:
    """A run's limits, and counts towards them that its checkpoints keep."""

    limits: GuardConfig = field(default_factory=GuardConfig)
    counts: dict[str, int] = field(default_factory=lambda: {"nonfinite": 0, "silent": 0})
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=SPIKE_WINDOW))

    def before_updates(self, batch: RolloutBatch) -> None:
        """Errors: GspoError (exit code 5) when the task failed to score too many responses."""
        scores = [score for group in (*batch.groups, *batch.dropped) for score in group.scores]
        missing = [score.reason for score in scores if score.value is None]
        if len(missing) > self.limits.unscored_frac * len(scores):
            raise GspoError(
                f"{len(missing)} of {len(scores)} responses of rollout batch {batch.step} could not be scored",
                f"the first reason is: {missing[0]}; guards.unscored_frac = {self.limits.unscored_frac}",
                "fix the task's reward; no update was made from this batch",
                ExitCode.ENGINE,
            )

    def after_updates(self, log: RunLog, batch: RolloutBatch, lines: list[StepMetrics]) -> None:
        """Counts refused updates and batches without any, logs events, and stops at a limit.

        Errors: GspoError (exit code 4); the log holds the batch, the weights are those before the refused update.
        """
        prompts = [group.problem.id for group in batch.groups]
        for index, values in enumerate(line.values for line in lines):
            if bad := nonfinite(values):
                self.counts["nonfinite"] += 1
                shown, count = {name: repr(values[name]) for name in bad}, self.counts["nonfinite"]
                log.event("nonfinite", step=batch.step, mini_batch=index, values=shown, prompts=prompts)
                if count >= self.limits.nonfinite_limit:
                    raise GspoError(
                        f"the loss or the gradient of rollout batch {batch.step} is not finite",
                        f"{', '.join(f'{name} {value}' for name, value in shown.items())} in mini-batch {index + 1}; "
                        f"that update was not made ({count} of at most {self.limits.nonfinite_limit})",
                        "lower algo.lr, or look at the batch, which the events name; a resume repeats it exactly",
                        ExitCode.GUARD,
                    )
            elif values.get("update/overflow_frac"):
                log.event("overflow", step=batch.step, mini_batch=index, loss_scale=values["grad/loss_scale"])
            elif norm := values.get("grad/norm"):
                if is_spike(self.norms, norm, self.limits.spike_z):
                    log.event("gradient_spike", step=batch.step, mini_batch=index, norm=norm, prompts=prompts)
                self.norms.append(norm)
        silent = not any(
            line.values["update/applied"] or line.values.get("update/overflow_frac") or nonfinite(line.values)
            for line in lines
        )
        self.counts["silent"] = self.counts["silent"] + 1 if silent else 0
        if silent:
            log.event("no_signal", step=batch.step, in_a_row=self.counts["silent"])
        if self.counts["silent"] >= self.limits.no_signal_batches:
            raise GspoError(
                f"{self.counts['silent']} rollout batches in a row gave no update",
                "all responses to a prompt got the same reward, or all were left out, so there is nothing to learn "
                f"from; guards.no_signal_batches = {self.limits.no_signal_batches}",
                _no_signal_hint(batch),
                ExitCode.GUARD,
            )


def _no_signal_hint(batch: RolloutBatch) -> str:
    """What to do about a batch without spread."""
    samples = [sample for group in (*batch.groups, *batch.dropped) for sample in group.samples]
    cut = sum(sample.finish == "length" for sample in samples)
    if cut >= CUT_WARNING * len(samples):
        return f"{cut} of {len(samples)} responses were cut off at {batch.max_new_tokens} tokens: {RAISE_LENGTH}"
    return "read the responses (`gspo runs samples`); easier or harder prompts, or more rollout.samples"


def nonfinite(values: dict[str, float | None]) -> list[str]:
    """The metrics of one update that should be finite and are not."""
    return [n for n in MUST_BE_FINITE if (value := values.get(n)) is not None and not math.isfinite(value)]


def is_spike(before: deque[float], norm: float, z: float) -> bool:
    """Whether a norm lies far above the last ones."""
    if len(before) < SPIKE_WINDOW:
        return False
    return norm > statistics.fmean(before) + z * statistics.stdev(before)


class SignalWatch:
    """Warns of batches without an update, and once of truncated responses, with the cause and the key to change."""

    def __init__(self, recipe: Recipe, emit: Emit) -> None:
        rollout = recipe.rollout
        self.responses, self.limit, self.emit = rollout.prompts * rollout.samples, rollout.max_new_tokens, emit
        self.masks = recipe.algo.truncation == "mask"
        self.warned = False

    def observe(self, step: int, values: Mapping[str, float | None]) -> None:
        """Takes in one rollout batch."""
        share, reward = values.get("length/truncated_frac") or 0.0, values.get("reward/mean")
        many_cut = share >= CUT_WARNING
        cut = f"{round(share * self.responses)} of {self.responses} responses were cut off at {self.limit} tokens"
        if values.get("update/applied") == 0 and not values.get("update/overflow_frac"):
            if values.get("group/zero_std_frac") != 1 and reward is not None:
                why = "rewards differ, but every response with an advantage is left out, or the algorithm gives none"
                if self.masks and share:
                    why = f"{cut}, and algo.truncation = 'mask' leaves them out; {RAISE_LENGTH}"
            elif many_cut:
                why = f"{cut}, and all responses to each prompt got the same reward; {RAISE_LENGTH}"
            else:
                got = "no response got a reward"
                if reward is not None:
                    got = f"all responses to each prompt got the same ({reward:.3g})"
                why = f"{got}, so there is nothing to learn from; `gspo runs samples` prints the responses"
            self.emit(Warned(f"no update from rollout batch {step}: {why}"))
        elif many_cut and not self.warned:
            self.warned = True
            self.emit(Warned(f"{cut} in rollout batch {step}; {RAISE_LENGTH}, or expect a reward that does not move"))


class CollapseWatch:
    """Watches for a collapsed reward and for signs of one. Each finding is logged as an event and shown, once."""

    def __init__(self, recipe: Recipe, log: RunLog, emit: Emit) -> None:
        self.stop, self.batch_size = recipe.train.stop_on_collapse, (recipe.rollout.prompts, recipe.rollout.samples)
        self.history = RewardHistory(collapse_window(recipe.train.steps), recipe.report.collapse)
        self.log, self.emit = log, emit
        self.first: dict[str, float] = {}
        self.reported: set[str] = set()
        if (log.folder / "metrics.jsonl").exists():
            self._replay((log.folder / "metrics.jsonl").read_text(encoding="ascii"))

    def _replay(self, lines: str) -> None:
        """Takes in the rollout batches of earlier attempts, which have reported their findings."""
        for record in map(json.loads, lines.splitlines()):
            values = record["metrics"]
            if record["kind"] == "rollout" and self._has_collapsed(values):
                self.reported.add("collapsed")
            if record["kind"] in ("rollout", "step"):
                self.first = {n: values[n] for n in SIGNS if values.get(n) is not None} | self.first

    def observe(self, step: int, values: Mapping[str, float | None]) -> None:
        """Takes in one rollout batch; called once for each, in order.

        Errors: GspoError (exit code 4) when the reward has collapsed and `train.stop_on_collapse` is set.
        """
        self._look_for_signs(step, values)
        if not self._has_collapsed(values) or "collapsed" in self.reported:
            return
        last, window = self.history.last, self.history.window
        text = f"the reward has collapsed: {last:.3f} over the last {window} rollout batches"
        self._report("collapsed", "collapsed", text, step=step, reward=last)
        if self.stop:
            raise GspoError(
                f"the reward has collapsed by rollout batch {step}",
                f"its mean over {window} batches is {last:.3f}, after {self.history.best:.3f} at its best",
                "train.stop_on_collapse = false trains on; the run counts as collapsed either way",
                ExitCode.GUARD,
            )

    def _has_collapsed(self, values: Mapping[str, float | None]) -> bool:
        """Whether the reward has collapsed by this batch."""
        mean, std, group_std = (values.get(f"reward/{name}") for name in ("mean", "std", "group_std"))
        if mean is None or not math.isfinite(mean):
            return False
        return self.history.add(batch_reward(mean, std, group_std, *self.batch_size))

    def _look_for_signs(self, step: int, values: Mapping[str, float | None]) -> None:
        for name, direction in SIGNS.items():
            if (value := values.get(name)) is not None:
                first = self.first.setdefault(name, value)
                if first > 0 and (value > SIGN_FACTOR * first if direction > 0 else value < first / SIGN_FACTOR):
                    text = f"{name} is {value / first:.2g} times its first value at rollout batch {step}"
                    self._report(f"sign {name}", "sign_of_collapse", text, step=step, metric=name, value=value)

    def _report(self, key: str, event: str, text: str, **details: object) -> None:
        if key not in self.reported:
            self.reported.add(key)
            self.log.event(event, **details)
            self.emit(Warned(text))


Watch = SignalWatch | CollapseWatch
