"""How a study with several runs at once looks while it runs: one row a run, the time left for all of it."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Self

from rich.live import Live
from rich.table import Table

from gspo_cli.cli import console
from gspo_cli.cli.bars import clock, is_live, number
from gspo_cli.errors import ExitCode

COLUMNS = {"reward": ("reward/mean", ".3f"), "length": ("length/mean", ".1f"), "clip": ("clip/token_frac", ".4f")}
WAITING, TRAINING, DONE, STOPPED = "waiting", "training", "done", "stopped"


class StudyView:
    """A live table of all runs on a terminal, else a line a step and a run."""

    def __init__(self, names: list[str], steps: int) -> None:
        self.steps, self.started = steps, time.monotonic()
        self.state = dict.fromkeys(names, (WAITING, ""))
        self.at = dict.fromkeys(names, 0)
        self.values: dict[str, dict[str, float | None]] = {name: {} for name in names}
        self.lock = threading.Lock()
        self.live = Live(console=console.err, refresh_per_second=4, transient=False) if is_live() else None

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.live:
            self.live.update(self.table())
            self.live.stop()

    def event(self, name: str, event: dict[str, Any]) -> None:
        """What a run's process told."""
        with self.lock:
            if "started" in event:
                self.state[name] = (TRAINING, "")
            elif "waiting" in event:
                self.state[name] = (WAITING, "")
            elif "step" in event:
                self.at[name], self.values[name] = event["step"], event["values"]
            elif "warnings" in event:
                for warning in event["warnings"]:
                    console.note(f"warning: {name}: {warning}")
            elif "ended" in event:
                ended = DONE if event["ended"] == ExitCode.OK else STOPPED
                self.state[name] = (ended, event["reason"])
            if self.live:
                self.live.update(self.table())
            elif not console.settings["quiet"]:
                self._line(name, event)

    def left(self) -> float | None:
        """Seconds until all is done, at the pace so far; None before the first step. A stopped run needs none."""
        done = sum(self.at.values())
        missing = sum(self.steps - at for name, at in self.at.items() if self.state[name][0] in (WAITING, TRAINING))
        return (time.monotonic() - self.started) / done * missing if done else None

    def table(self) -> Table:
        """All runs."""
        left = self.left()
        done = sum(state in (DONE, STOPPED) for state, _ in self.state.values())
        title = f"{done} of {len(self.state)} runs done" + ("" if not left else f", {clock(left)} left")
        table = console.table("run", "state", "step", *COLUMNS, title=title)
        for name, (state, reason) in self.state.items():
            numbers = (number(self.values[name].get(key), form) for key, form in COLUMNS.values())
            what = f"{state}: {reason}" if reason else state
            table.add_row(name, what, f"{self.at[name]}/{self.steps}", *numbers)
        return table

    def _line(self, name: str, event: dict[str, Any]) -> None:
        if "step" in event:
            left = self.left()
            cells = {k: number(event["values"].get(key), form) for k, (key, form) in COLUMNS.items()}
            pairs = " ".join(f"{k}={v}" for k, v in cells.items())
            study = "" if left is None else f" left={clock(left)}"
            console.note(f"run={name} step={event['step']}/{self.steps} {pairs}{study}")
        elif "ended" in event:
            state, reason = self.state[name]
            console.note(f"run={name} {state}" + (f": {reason}" if reason else ""))
