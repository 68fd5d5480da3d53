"""Watches a run for collapse while it trains: the verdict by the recipe's reward rule, and signs that come before."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median

from gspo_cli.config import Recipe
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.runlog.collapse import has_collapsed, window_of
from gspo_cli.runlog.log import RunLog

Values = Mapping[str, float | None]
FACTOR = 10.0
"""How far a sign must be from where it started (entropy, mismatch) or from its running median (gradient norm)."""
MEDIAN_OVER = 50
FEWEST_FOR_MEDIAN = 5
STARTED = {"entropy/mean": -1, "kl/sampler_trainer_k3": 1}
"""Metric -> 1 if too high is the sign, -1 if too low; against its first value."""
NORM = "grad/norm"


class CollapseWatch:
    """Sees each rollout batch's values once, in order; each finding is an event of the log and told once."""

    def __init__(self, recipe: Recipe, log: RunLog, tell: Callable[[str], None]) -> None:
        self.rule, self.stop = recipe.report.collapse, recipe.train.stop_on_collapse
        self.window = window_of(recipe.train.steps)
        self.log, self.tell = log, tell
        self.rewards: list[float] = []
        self.first: dict[str, float] = {}
        self.norms: deque[float] = deque(maxlen=MEDIAN_OVER)
        self.told: set[str] = set()
        if (log.folder / "metrics.jsonl").exists():
            self._recall((log.folder / "metrics.jsonl").read_text(encoding="ascii"))

    def _recall(self, lines: str) -> None:
        """The rollout batches of earlier attempts, whose findings were told then."""
        for record in map(json.loads, lines.splitlines()):
            values = record["metrics"]
            if record["kind"] == "rollout" and values.get("reward/mean") is not None:
                self.rewards.append(values["reward/mean"])
                if has_collapsed(self.rewards, self.window, self.rule.below, self.rule.least):
                    self.told.add("collapsed")
            if record["kind"] in ("rollout", "step"):
                self.first = {n: values[n] for n in STARTED if values.get(n) is not None} | self.first
            if record["kind"] == "step" and values.get(NORM) is not None:
                self.norms.append(values[NORM])

    def see(self, step: int, values: Values) -> None:
        """One rollout batch.

        Errors: GspoError (exit code 4) when the reward has collapsed and `train.stop_on_collapse` is set.
        """
        self._signs(step, values)
        reward = values.get("reward/mean")
        if reward is None:
            return
        self.rewards.append(reward)
        if "collapsed" in self.told:
            return
        if has_collapsed(self.rewards, self.window, self.rule.below, self.rule.least):
            last = sum(self.rewards[-self.window :]) / self.window
            self._once("collapsed", f"the reward has collapsed: {last:.3f} over the last {self.window} rollout batches",
                       step=step, reward=last)  # fmt: skip
            if self.stop:
                raise GspoError(
                    f"the reward has collapsed by rollout batch {step}",
                    f"its mean over {self.window} batches is {last:.3f}, under {self.rule.below:g} times its best",
                    "train.stop_on_collapse = false goes on; the run counts as collapsed either way",
                    ExitCode.GUARD,
                )

    def _signs(self, step: int, values: Values) -> None:
        """Warnings, not verdicts."""
        for name, direction in STARTED.items():
            value = values.get(name)
            if value is None:
                continue
            start = self.first.setdefault(name, value)
            if start > 0 and (value > FACTOR * start if direction > 0 else value < start / FACTOR):
                self._sign(name, step, value, f"{value / start:.2g} times its first value")
        norm = values.get(NORM)
        if norm is not None:
            usual = median(self.norms) if len(self.norms) >= FEWEST_FOR_MEDIAN else None
            if usual and norm > FACTOR * usual:
                self._sign(NORM, step, norm, f"{norm / usual:.2g} times its running median")
            self.norms.append(norm)

    def _sign(self, name: str, step: int, value: float, text: str) -> None:
        self._once(f"sign {name}", f"{name} is {text} at rollout batch {step}", step=step, metric=name, value=value)

    def _once(self, what: str, text: str, **details: object) -> None:
        if what not in self.told:
            self.told.add(what)
            self.log.event("collapsed" if what == "collapsed" else "sign_of_collapse", **details)
            self.tell(text)
