"""A run's mirror in `<study>/<tracker>/<run>/`: made anew by each command, then kept up with the log."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from gspo_cli.errors import GspoError
from gspo_cli.exporters import EXPORTERS
from gspo_cli.exporters.contract import Exporter, Origin, Sink
from gspo_cli.exporters.tail import Diverged, Tail
from gspo_cli.runlog import fs
from gspo_cli.runlog.read import read_object

EVERY_S = 5.0
"""Between two looks at a log that is followed."""


class Mirror:
    """One run in one tracker."""

    def __init__(self, run: Path, tracker: str) -> None:
        self.run, self.folder, self.num_rows = run, place(run, tracker) / run.name, 0
        self._exporter: Exporter = EXPORTERS[tracker]
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
            self._sink.write(rows)
        self.num_rows += len(rows)

    def close(self) -> None:
        """Ends the mirror."""
        self._sink.close()

    def _begin(self) -> tuple[Tail, Sink]:
        try:
            if self.folder.exists():
                fs.remove_tree(self.folder)
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise fs.storage_error(self.folder, error) from error
        return Tail(self.run), self._exporter.open_sink(_origin(self.run), self.folder)


def place(study: Path, tracker: str) -> Path:
    """Where the mirrors of a study, or of a run's study, lie: beside the runs, whose folders nothing else writes to."""
    return (study.parent if (study / "run.json").is_file() else study) / tracker


def check(tracker: str) -> None:
    """Errors: GspoError if there is no such exporter."""
    if tracker not in EXPORTERS:
        raise GspoError(
            f"no exporter {tracker!r}", f"there are {', '.join(EXPORTERS)}", f"--to {next(iter(EXPORTERS))}"
        )


def export(study: Path, tracker: str) -> list[Mirror]:
    """Mirrors the logs of a study, or of one run, as they stand.

    Errors: GspoError if there is no log yet, or as `Mirror`.
    """
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


def follow(study: Path, tracker: str, pause: Callable[[float], None] = time.sleep) -> None:
    """Mirrors the runs, also those that come later, and keeps up with their logs until it is interrupted."""
    mirrors: dict[Path, Mirror] = {}
    try:
        while True:
            for run in _with_log(study):
                if run not in mirrors:
                    mirrors[run] = Mirror(run, tracker)
                mirrors[run].catch_up()
            pause(EVERY_S)
    finally:
        for mirror in mirrors.values():
            mirror.close()


def _with_log(study: Path) -> list[Path]:
    return [path.parent for path in sorted([*study.glob("metrics.jsonl"), *study.glob("*/metrics.jsonl")])]


def _origin(run: Path) -> Origin:
    about = read_object(run / "run.json")
    return Origin(str(about["run_id"]), run.resolve().parent.name, run.name, str(about["arm"]),
                  read_object(run / "config.json"))  # fmt: skip
