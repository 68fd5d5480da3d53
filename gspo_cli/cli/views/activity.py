"""What a run does at this moment: its phase, how far sampling is, how long its last batch took, and memory."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from gspo_cli.cli.console import clock
from gspo_cli.events import SamplingProgress

LINE_INTERVAL_S = 30.0
"""Without a terminal: the minimum time between two lines about the same batch."""
PHASES = {
    "start": "loading the model", "rollout": "sampling", "score": "scoring", "prepare": "preparing",
    "probe": "probing", "old_policy": "old policy", "update": "updating", "sync": "handing over weights",
    "evaluate": "evaluating", "save": "saving",
}  # fmt: skip
"""What a phase is called on the screen."""
TIMES = {"sampling": "rollout_s", "scoring": "score_s", "old policy": "old_policy_s", "update": "update_s",
         "sync": "sync_s"}  # fmt: skip
"""The phases of a batch whose seconds are shown. Scoring is part of `rollout_s`."""


class Drawing:
    """One sampling, its speed, and how long it may still take."""

    def __init__(self) -> None:
        self.last: SamplingProgress | None = None
        self.began = time.monotonic()

    def update(self, progress: SamplingProgress) -> None:
        """Take in how far the engine is; fewer tokens than before mean a new request."""
        if self.last is not None and progress.tokens < self.last.tokens:
            self.began = time.monotonic()
        self.last = progress

    def restart(self) -> None:
        """A new sampling begins."""
        self.last, self.began = None, time.monotonic()

    def text(self) -> str:
        """`12/64 responses, 480 tok/s, at most 1:20 left`; empty before the first report."""
        if self.last is None:
            return ""
        seconds, share = time.monotonic() - self.began, self.last.share
        rate = self.last.tokens / seconds if seconds > 0 else 0.0
        left = f", at most {clock(seconds / share * (1 - share))} left" if 0 < share < 1 else ""
        digits = 0 if rate >= 10 else 1
        return f"{self.last.done}/{self.last.wanted} responses, {rate:.{digits}f} tok/s{left}"


class Activity:
    """The phase that a run is in."""

    def __init__(self) -> None:
        self.phase, self.since = "start", time.monotonic()
        self.batch: int | None = None
        self.drawing = Drawing()
        self.last_batch = ""
        self.stopping = ""
        """What to say after a signal."""
        self.last_line = time.monotonic()

    def enter(self, phase: str) -> None:
        """The run begins a phase."""
        if phase == "rollout":
            self.drawing.restart()
        self.phase, self.since = phase, time.monotonic()

    def finish_batch(self, step: int, values: Mapping[str, float | None]) -> None:
        """Take in the times of a finished rollout batch."""
        self.batch, self.last_batch = step, batch_times(values)

    def text(self) -> str:
        """`batch 3: sampling 0:42, 12/64 responses, 480 tok/s, at most 1:20 left; memory 2.1 GB`."""
        where = "" if self.batch is None else f"batch {self.batch + 1}: "
        parts = [f"{where}{PHASES.get(self.phase, self.phase)} {clock(time.monotonic() - self.since)}"]
        if self.phase == "rollout" and (drawing := self.drawing.text()):
            parts.append(drawing)
        return ", ".join(parts) + f"; memory {memory_gb():.1f} GB"

    def line_is_due(self) -> bool:
        """Whether the time for another plain line has come."""
        now = time.monotonic()
        due = now - max(self.last_line, self.since) >= LINE_INTERVAL_S
        self.last_line = now if due else self.last_line
        return due


def batch_times(values: Mapping[str, float | None]) -> str:
    """`last batch 81.2 s: sampling 60.1, scoring 0.4, update 18.0, other 2.7`."""
    whole = values.get("batch_s")
    if whole is None:
        return ""
    seconds = {name: values.get(key) or 0.0 for name, key in TIMES.items()}
    seconds["sampling"] -= seconds["scoring"]
    seconds["other"] = max(0.0, whole - sum(seconds.values()))
    return f"last batch {whole:.1f} s: " + ", ".join(f"{name} {s:.1f}" for name, s in seconds.items() if s >= 0.05)


def memory_gb() -> float:
    """Memory of this process in units of 10^9 bytes: on the GPU if it uses one, else resident."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated()) / 1e9
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e9
