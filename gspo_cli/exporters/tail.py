"""The rows of a log as it grows.

A resumed run writes the lines after its checkpoint again, byte for byte, so a reader that knows how far it came need
only wait until the log is longer than that: no row is given twice. Each line holds the hash of the one before, so where
the last line is still the one that was read, all before it are; where it is not, the log went another way.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.exporters.contract import Row
from gspo_cli.runlog.chain import split_torn
from gspo_cli.runlog.strict_json import parse_object

KEYS = ("seq", "step", "kind", "mini_batch", "time", "attempt")
"""What a line of `perf.jsonl` says of itself; the rest are measurements."""

Record = dict[str, Any]


class Diverged(Exception):
    """The log no longer begins with the lines that were read."""


class Tail:
    """Reads a run's log from its beginning, and later what has come since."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._bytes = self._updates = self._perf_bytes = 0
        self._last = b""
        self._perf: dict[int, Record] = {}

    def rows(self) -> list[Row]:
        """Those of the whole lines that have come.

        Errors: Diverged; GspoError (exit code 6) for a line that is no strict JSON.
        """
        lines = self._new(self.run / "metrics.jsonl", self._bytes - len(self._last))
        if len(lines) <= len(self._last):
            return []  # nothing has come, or a resume has cut the log
        if not lines.startswith(self._last):
            raise Diverged
        self._read_perf()
        return [self._row(line) for line in lines[len(self._last) :].splitlines(keepends=True)]

    def _row(self, line: bytes) -> Row:
        record = self._parse(self.run / "metrics.jsonl", line)
        self._bytes, self._last = self._bytes + len(line), line
        is_update = record["kind"] == "update"
        self._updates += is_update
        perf = self._perf.get(record["seq"], {})
        values = {name: value for name, value in record["metrics"].items() if value is not None}
        values |= {name: float(word) for name, word in record["nonfinite"].items()}
        named = {f"updates/{name}" if is_update else name: float(value) for name, value in values.items()}
        named |= {f"perf/{name}": float(v) for name, v in perf.items() if name not in KEYS and _is_number(v)}
        step = self._updates if is_update else record["step"]
        return Row("update" if is_update else "rollout_batch", step, self._time(perf), named)

    def _time(self, perf: Record) -> float:
        """The clock's line is written after the log's and may be lost with it."""
        if "time" in perf:
            return datetime.fromisoformat(perf["time"]).timestamp()
        return (self.run / "metrics.jsonl").stat().st_mtime

    def _read_perf(self) -> None:
        """The newest line of each number: those of lines written again stand later."""
        path = self.run / "perf.jsonl"
        lines = self._new(path, self._perf_bytes) if path.is_file() else b""
        self._perf_bytes += len(lines)
        self._perf |= {record["seq"]: record for record in (self._parse(path, line) for line in lines.splitlines())}

    @staticmethod
    def _new(path: Path, start: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return split_torn(file.read())[0]

    @staticmethod
    def _parse(path: Path, line: bytes) -> Record:
        try:
            return parse_object(line.decode("ascii"))
        except ValueError as error:
            raise GspoError(
                f"{path} cannot be exported", f"a line is not what was written: {error}",
                "`gspo runs verify` names the line", ExitCode.STORAGE,
            ) from error  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
