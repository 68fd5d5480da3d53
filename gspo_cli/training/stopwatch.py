"""Seconds by phase, for `perf.jsonl`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up the time spent in each phase of a rollout batch."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.lap = time.perf_counter()
        self.phase = "start"
        """What was begun last, for readers of a run in progress."""

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Times what is done within the context."""
        start, self.phase = time.perf_counter(), phase.removesuffix("_s")
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - start

    def reset(self) -> dict[str, float]:
        """The phases since the last reset and `batch_s`, all of the time since then; starts anew."""
        now = time.perf_counter()
        times = {k: round(v, 6) for k, v in self.seconds.items()} | {"batch_s": round(now - self.lap, 6)}
        self.seconds.clear()
        self.lap = now
        return times
