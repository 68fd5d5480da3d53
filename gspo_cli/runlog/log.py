"""A run's logs: `metrics.jsonl` (deterministic, hash-chained), `perf.jsonl` (clock and machine), `events.jsonl`."""

import hashlib
import json
import math
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.runlog import fs
from gspo_cli.runlog.fs import append_lines
from gspo_cli.runlog.schema import is_known
from gspo_cli.runlog.strict_json import parse_object
from gspo_cli.types import StepMetrics


def canonical(value: Any) -> str:
    """The canonical JSON text of a value: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def short_hash(text: str) -> str:
    """The first 32 hex digits of sha256."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def config_text(config: dict[str, Any]) -> str:
    """What a run's configuration hash, and so its log's first line, is computed from: all but the study's name."""
    return canonical({key: value for key, value in config.items() if key != "name"})


def now() -> str:
    """The current time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class RunLog:
    """Appends to the logs of one run folder.

    `metrics.jsonl` holds only what the seed determines: two runs with the same seed have equal bytes, and so do a run
    that was killed and resumed and one that was not. Each line carries the hash of the previous line; the first carries
    the hash of the configuration. `flush` writes all lines of a rollout batch together, so the file always ends with a
    whole batch. Anything that depends on the clock or the attempt goes to the other two files.
    """

    writes = True

    def __init__(self, folder: Path, config_hash: str, attempt: int = 1) -> None:
        self.folder, self.attempt = folder, attempt
        self.seq, self.num_bytes = 0, 0
        self.head = config_hash
        self.expected: dict[int, str] = {}
        """Lines that an earlier attempt wrote and this one must reproduce: `seq` -> text."""
        self._metrics: list[str] = []
        self._perf: list[str] = []

    def resume(self, seq: int, num_bytes: int, head: str, dropped: bytes) -> None:
        """Continue a log of `seq` lines; `dropped` holds the lines cut off after them, which must come out the same."""
        self.seq, self.num_bytes, self.head = seq, num_bytes, head
        self.expected = dict(enumerate(dropped.decode(errors="replace").splitlines(), start=seq))

    def line(self, kind: str, step: int, metrics: StepMetrics, mini_batch: int | None = None,
             perf: dict[str, float] | None = None) -> None:  # fmt: skip
        """Queue one line. None means "not applicable"; a non-finite value becomes null and is named in `nonfinite`.

        Errors: asserts that each metric is in the schema.
        """
        for name in metrics.values:
            assert is_known(name), f"metric {name} is not in the schema, gspo_cli/runlog/metrics.toml"
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
        if self.expected.pop(self.seq, text) != text:
            self.expected.clear()  # all later lines differ too
            self.event("resume_diverged", seq=self.seq, step=step)
        self.seq += 1

    def flush(self) -> None:
        """Write the queued lines."""
        metrics, perf = self._metrics, self._perf
        self._metrics, self._perf = [], []
        if metrics:
            self.num_bytes += append_lines(self.folder / "metrics.jsonl", metrics)
            append_lines(self.folder / "perf.jsonl", perf)

    def event(self, name: str, **details: Any) -> None:
        """Log an event, such as a start, an end or an error."""
        record = {"event": name, "time": now(), "attempt": self.attempt} | details
        append_lines(self.folder / "events.jsonl", [canonical(record)])


class SilentLog(RunLog):
    """The log of every rank but rank 0: takes the same lines and writes nothing."""

    writes = False

    def flush(self) -> None:
        """Discard the queued lines."""
        self._metrics, self._perf = [], []

    def event(self, name: str, **details: Any) -> None:
        """Do nothing."""


MAX_LINE, MAX_STEP = 1 << 20, 1_000_000_000
"""Maximum length of a log line in bytes, and the largest step and line number."""
KEYS = {"seq", "step", "kind", "mini_batch", "metrics", "counts", "nonfinite", "prev"}


class BrokenLine(Exception):
    """A complete line that this tool did not write. Never repaired: only an edit or a bad disk produces one."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line, self.why = line, why


@dataclass(frozen=True)
class Position:
    """A position in a log, after a number of whole lines."""

    num_bytes: int
    num_lines: int
    head: str
    """The hash that the next line must carry; before the first line, the hash of the configuration."""


def split_torn(data: bytes) -> tuple[bytes, bytes]:
    """Split off a torn end: a last line without a newline, or the NUL bytes that a power loss can leave."""
    whole = data.rfind(b"\n") + 1
    return data[:whole], data[whole:]


def check_chain(data: bytes, head: str, num_before: int = 0) -> Position:
    """Check whole lines that follow `num_before` lines of a log, and return the position after them.

    Errors: BrokenLine for the first line that is not canonical strict JSON, has the wrong number, or does not carry
    the hash of the previous line.
    """
    for seq, line in enumerate(data.splitlines(keepends=True), start=num_before):
        head = _check_line(line, seq, head)
    return Position(len(data), num_before + data.count(b"\n"), head)


def _check_line(line: bytes, seq: int, head: str) -> str:
    """Check one line and return its hash."""
    number = seq + 1
    if len(line) > MAX_LINE:
        raise BrokenLine(number, f"longer than {MAX_LINE} bytes")
    try:
        text = line.decode("ascii").removesuffix("\n")
        record = parse_object(text)
    except ValueError as error:
        raise BrokenLine(number, str(error)) from error
    if record.keys() != KEYS or canonical(record) != text:
        raise BrokenLine(number, "gspo did not write it")
    if record["seq"] != seq:
        raise BrokenLine(number, f"seq is {record['seq']}, not {seq}: lines are missing, repeated or out of order")
    if record["prev"] != head:
        before = "the previous line" if seq else "the configuration"
        raise BrokenLine(number, f"its hash does not match {before}, so one of the two was changed")
    return short_hash(text)


LOGS = ("metrics.jsonl", "perf.jsonl", "events.jsonl")


def repair_tails(folder: Path) -> list[dict[str, Any]]:
    """Cut the torn end off each log, and return what was cut. Errors: GspoError (exit code 6) if the disk refuses."""
    repaired = []
    for path in [folder / name for name in LOGS]:
        whole, torn = split_torn(path.read_bytes()) if path.exists() else (b"", b"")
        if torn:
            fs.truncate(path, len(whole))
            repaired.append({"file": path.name, "bytes": len(torn), "sha256": hashlib.sha256(torn).hexdigest()})
    return repaired


def remove_unfinished_files(folder: Path) -> None:
    """Remove the temporary files that a crash left behind. Temporary checkpoint folders are removed elsewhere."""
    for path in sorted(folder.rglob(".tmp-*")):
        if path.is_file() or path.is_symlink():
            os.unlink(path)


def check_log(path: Path, start: str, position: Position) -> bytes:
    """Check every line up to a checkpoint's position, and return the bytes after it.

    Errors: GspoError (exit code 6) if the log is shorter than the position or was changed before it.
    """
    data = path.read_bytes() if path.exists() else b""
    kept, dropped = data[: position.num_bytes], data[position.num_bytes :]
    if len(kept) < position.num_bytes:
        why = f"it has {len(data)} bytes, but the checkpoint was saved after {position.num_bytes}"
    elif kept and not kept.endswith(b"\n"):
        why = f"byte {position.num_bytes}, where the checkpoint was saved, is not the end of a line"
    else:
        try:
            found = check_chain(kept, start)
        except BrokenLine as error:
            why = str(error)
        else:
            if found == position:
                return dropped
            why = "its lines form a valid chain that ends with another hash than the checkpoint's"
    raise GspoError(
        f"{path} does not belong to the checkpoint", why, "restore the file from a copy; nothing was changed",
        ExitCode.STORAGE,
    )  # fmt: skip


def truncate_log(path: Path, position: Position, dropped: bytes, backup: Path) -> dict[str, Any] | None:
    """Save the dropped bytes to `backup`, then truncate the log. Returns what was cut; None if nothing was.

    A crash in between leaves both, and the next resume repeats the cut.
    """
    if not dropped:
        return None
    with fs.write_atomic(backup) as temporary:
        temporary.write_bytes(dropped)
    fs.truncate(path, position.num_bytes)
    return {
        "file": path.name, "bytes": len(dropped), "lines": dropped.count(b"\n"), "kept_as": backup.name,
        "sha256": hashlib.sha256(dropped).hexdigest(),
    }  # fmt: skip


def move_later_rollouts(rollouts: Path, step: int, target: Path) -> list[str]:
    """Move the rollout batches stored after `step` into the folder `target`, and return their names."""
    moved = []
    for path in sorted(rollouts.glob("step_*.parquet")):
        if int(path.stem.removeprefix("step_")) > step:
            target.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(target / path.name):
                os.unlink(target / path.name)
            fs.rename(path, target / path.name)
            moved.append(path.name)
    return moved
