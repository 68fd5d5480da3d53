"""A run's mirror in `<study>/<tracker>/<run>/`: made anew by each command, then kept up with the log."""

import importlib.util
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.exporters.contract import Exporter, LogRow, Origin
from gspo_cli.exporters.tensorboard import EventFile
from gspo_cli.exporters.trackio import ProjectRun
from gspo_cli.exporters.wandb import OfflineRun
from gspo_cli.runlog import fs
from gspo_cli.runlog.checksums import refuse_damaged
from gspo_cli.runlog.log import split_torn
from gspo_cli.runlog.strict_json import parse_object, read_object

EXPORTERS: dict[str, type[Exporter]] = {"tensorboard": EventFile, "wandb": OfflineRun, "trackio": ProjectRun}
"""To add one: a class in a module of its own, and an entry here; named like the library that it needs."""
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

    def rows(self) -> list[LogRow]:
        """Those of the new whole lines. Errors: Diverged; GspoError (exit code 6) for a line that is none of a log."""
        lines = self._new(self.run / "metrics.jsonl", self._bytes - len(self._last))
        if len(lines) <= len(self._last):
            return []  # nothing has come, or a resume has cut the log
        if not lines.startswith(self._last):
            raise Diverged
        self._read_perf()
        try:
            return [self._row(line) for line in lines[len(self._last) :].splitlines(keepends=True)]
        except (LookupError, TypeError, AttributeError) as error:
            raise _not_written(self.run / "metrics.jsonl", error) from error

    def _row(self, line: bytes) -> LogRow:
        record = self._parse(self.run / "metrics.jsonl", line)
        self._bytes, self._last = self._bytes + len(line), line
        is_update = record["kind"] == "update"
        self._updates += is_update
        perf = self._perf.get(record["seq"], {})
        values = {name: value for name, value in record["metrics"].items() if value is not None}
        values |= {name: float(word) for name, word in record["nonfinite"].items()}
        named = {f"updates/{name}" if is_update else name: float(value) for name, value in values.items()}
        named |= {f"perf/{name}": float(v) for name, v in perf.items() if name not in KEYS and type(v) in (int, float)}
        step = self._updates if is_update else record["step"]
        return LogRow("update" if is_update else "rollout_batch", step, self._time(perf), named)

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
        self._perf |= {
            record.get("seq", -1): record for record in (self._parse(path, line) for line in lines.splitlines())
        }

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
            raise _not_written(path, error) from error


def _not_written(path: Path, error: Exception) -> GspoError:
    why = f"a line is not what was written: {error!r:.200}"
    return GspoError(f"{path} cannot be exported", why, "`gspo runs verify` names the line", ExitCode.STORAGE)


EVERY_S = 5.0
"""Between two looks at a log that is followed."""


class Mirror:
    """One run in one tracker."""

    def __init__(self, run: Path, tracker: str) -> None:
        self.run, self.folder, self.num_rows = run, place(run, tracker) / run.name, 0
        self._tracker = tracker
        self._tail, self._sink = self._begin()

    def catch_up(self) -> None:
        """Writes the rows that have come since; all of them again where the log went another way.

        Errors: GspoError for a log or a folder that cannot be read or written.
        """
        try:
            rows = self._tail.rows()
        except Diverged:
            self._sink.close()
            self.num_rows = 0
            self._tail, self._sink = self._begin()
            rows = self._tail.rows()
        if rows:
            try:
                self._sink.write(rows)
            except OSError as error:  # of a full disk, say, from the tracker's library
                raise fs.storage_error(self.folder, error) from error
        self.num_rows += len(rows)

    def close(self) -> None:
        """Ends the mirror."""
        self._sink.close()

    def _begin(self) -> tuple[Tail, Exporter]:
        try:
            if self.folder.exists():
                fs.remove_tree(self.folder)
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise fs.storage_error(self.folder, error) from error
        refuse_damaged(self.run / "metrics.jsonl")
        about, study = read_object(self.run / "run.json"), self.run.resolve().parent.name
        config = read_object(self.run / "config.json")
        origin = Origin(str(about["run_id"]), study, self.run.name, str(about["arm"]), config)
        try:
            return Tail(self.run), EXPORTERS[self._tracker](origin, self.folder)
        except ImportError as error:
            raise missing(self._tracker) from error


def place(study: Path, tracker: str) -> Path:
    """Where the mirrors of a study, or of a run's study, lie: beside the runs, whose folders nothing else writes to."""
    return (study.parent if (study / "run.json").is_file() else study) / tracker


def missing(tracker: str) -> GspoError:
    """The library of a tracker is not there."""
    return GspoError(
        f"{tracker} is not installed",
        f"the exporter writes with {tracker}'s own library",
        f"pip install 'gspo[{tracker}]'",
    )


def check(tracker: str) -> None:
    """Errors: GspoError if there is no such exporter."""
    if tracker not in EXPORTERS:
        raise GspoError(
            f"no exporter {tracker!r}", f"there are {', '.join(EXPORTERS)}", f"--to {next(iter(EXPORTERS))}"
        )


def check_all(trackers: str | None) -> list[str]:
    """The trackers of a list such as `tensorboard,wandb`, each once.

    Errors: GspoError for an unknown one, or if its library is not installed.
    """
    names = list(dict.fromkeys(name.strip() for name in (trackers or "").split(",") if name.strip()))
    for name in names:
        check(name)
        if importlib.util.find_spec(name) is None:
            raise missing(name)
    return names


def export(study: Path, tracker: str) -> list[Mirror]:
    """Mirrors the logs of a study, or of one run, as they stand. Errors: GspoError without a log, or as `Mirror`."""
    if not (runs := _with_log(study)):
        raise GspoError(
            f"nothing to export in {study}", "no run in it has a log yet", "wait for the first rollout batch"
        )
    mirrors = []
    for run in runs:
        mirrors.append(Mirror(run, tracker))
        try:
            mirrors[-1].catch_up()
        finally:
            mirrors[-1].close()
    return mirrors


def follow(
    study: Path, tracker: str, pause: Callable[[float], object] = time.sleep, ended: Callable[[], bool] = lambda: False
) -> None:
    """Mirrors the runs, also those that come later, and keeps up with their logs until it is interrupted; or until it
    `ended`, with a last look after that."""
    mirrors: dict[Path, Mirror] = {}
    try:
        is_last = False
        while not is_last:
            is_last = ended()  # before the look: what was written until then is in it
            for run in _with_log(study):
                if run not in mirrors:
                    mirrors[run] = Mirror(run, tracker)
                mirrors[run].catch_up()
            if not is_last:
                pause(EVERY_S)
    finally:
        for mirror in mirrors.values():
            mirror.close()


def _with_log(study: Path) -> list[Path]:
    return [path.parent for path in sorted([*study.glob("metrics.jsonl"), *study.glob("*/metrics.jsonl")])]


def main() -> int:
    """The process that keeps one tracker up with a study, which `--report-to` starts: follows the study `argv[1]` for
    the tracker `argv[2]` until stdin ends, then writes what has come since.

    The parent holds the other end of stdin, so this process ends with it. Prints how to read the mirror, or the error.
    """
    study, tracker = Path(sys.argv[1]), sys.argv[2]
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    try:
        follow(study, tracker, pause=ended.wait, ended=ended.is_set)
    except GspoError as error:
        print(f"{error.message}: {error.why}", flush=True)
        return int(error.code)
    print(EXPORTERS[tracker].how_to_read(place(study, tracker)), flush=True)
    return 0
