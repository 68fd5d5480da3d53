"""A run's logs: `metrics.jsonl` (deterministic, chained), `perf.jsonl` (clock and machine), `events.jsonl`."""

from __future__ import annotations

import hashlib
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gspo_cli.runlog.fs import append_lines
from gspo_cli.runlog.schema import is_known
from gspo_cli.types import StepMetrics


def canonical(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def short_hash(text: str) -> str:
    """The first 32 hex digits of sha256."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class RunLog:
    """Appends to the logs of one run folder.

    `metrics.jsonl` holds only what the seed determines, so that two runs with one seed have equal bytes, and so have a
    run that was killed and resumed and one that was not; each line carries the hash of the line before (the first one
    that of the configuration). Lines of one rollout batch are written together by `flush`, so the file always ends at
    a batch's end. What depends on the clock or the attempt goes to the other two files.
    """

    writes = True

    def __init__(self, folder: Path, config_hash: str, attempt: int = 1) -> None:
        self.folder, self.attempt = folder, attempt
        self.seq, self.num_bytes = 0, 0
        self.head = config_hash
        self.repeats: dict[int, str] = {}
        """Lines of an earlier attempt that are to be written again: `seq` -> text."""
        self._metrics: list[str] = []
        self._perf: list[str] = []

    def go_on(self, seq: int, num_bytes: int, head: str, dropped: bytes = b"") -> None:
        """Continues a log that has these lines and bytes; `dropped` = the lines after them, which were cut off and
        must come out the same again."""
        self.seq, self.num_bytes, self.head = seq, num_bytes, head
        self.repeats = dict(enumerate(dropped.decode(errors="replace").splitlines(), start=seq))

    def line(self, kind: str, step: int, metrics: StepMetrics, mini_batch: int | None = None,
             perf: dict[str, float] | None = None) -> None:  # fmt: skip
        """Queues one line. A None value means "not applicable"; a non-finite one becomes null with its name kept.

        Errors: asserts that each metric is in the schema.
        """
        for name in metrics.values:
            assert is_known(name), f"metric {name} is not in the schema"
        values, nonfinite = {}, {}
        for name, value in metrics.values.items():
            if value is not None and not math.isfinite(value):
                nonfinite[name] = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
                value = None
            values[name] = value
        key = {"seq": self.seq, "step": step, "kind": kind, "mini_batch": mini_batch}
        text = canonical(key | {"metrics": values, "counts": metrics.counts, "nonfinite": nonfinite, "prev": self.head})
        self._metrics.append(text)
        self._perf.append(canonical(key | {"time": now(), "attempt": self.attempt} | (perf or {})))
        self.head = short_hash(text)
        if self.repeats.pop(self.seq, text) != text:
            self.repeats.clear()  # what follows differs too
            self.event("resume_diverged", seq=self.seq, step=step)
        self.seq += 1

    def flush(self) -> None:
        """Writes what is queued."""
        metrics, perf = self._metrics, self._perf
        self._metrics, self._perf = [], []
        if metrics:
            self.num_bytes += append_lines(self.folder / "metrics.jsonl", metrics)
            append_lines(self.folder / "perf.jsonl", perf)

    def event(self, name: str, **details: Any) -> None:
        """Something that happened: starts, ends, interruptions, errors."""
        record = {"event": name, "time": now(), "attempt": self.attempt} | details
        append_lines(self.folder / "events.jsonl", [canonical(record)])


class SilentLog(RunLog):
    """The log of a rank that is not the first: it takes the same lines and writes none."""

    writes = False

    def flush(self) -> None:
        """Forgets what is queued."""
        self._metrics, self._perf = [], []

    def event(self, name: str, **details: Any) -> None:
        """Nothing."""
