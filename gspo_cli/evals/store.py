"""The folder of one evaluation: parts while it runs, then one table and its summary.

parts/part-00000.parquet  one portion of answers, whole or not there
answers.parquet           all answers with their grades
summary.json              written last: it stands for a finished evaluation
events.jsonl              starts, parts, ends, with times
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from gspo_cli.errors import GspoError
from gspo_cli.evals.answers import Answer, Key, read_answers, write_answers
from gspo_cli.evals.benchmark import Grade
from gspo_cli.evals.identity import first_difference
from gspo_cli.runlog.folder import make_writable
from gspo_cli.runlog.fs import append_lines, write_text
from gspo_cli.runlog.log import canonical, now

Mode = Literal["new", "resume", "overwrite"]
OURS = {"parts", "answers.parquet", "summary.json", "events.jsonl", ".lock"}


class Store:
    """An evaluation's folder, held by this process alone (see `open_store`)."""

    def __init__(
        self, folder: Path, identity: dict[str, Any], portions: list[list[Key]], warn: Callable[[str], None]
    ) -> None:
        self.folder = folder
        self.identity = identity
        self.portions = portions
        self.warn = warn
        self.parts: dict[int, list[Answer]] = {}
        """Portion -> its answers, as far as they are stored."""

    @property
    def finished(self) -> bool:
        """Whether there is a figure."""
        return (self.folder / "summary.json").is_file()

    def prepare(self, mode: Mode) -> None:
        """Reads what is there.

        Errors: GspoError when the folder holds another evaluation, or an unfinished one without `resume`.
        """
        for leftover in self.folder.rglob(".tmp-*"):
            leftover.unlink()
        if mode == "overwrite":
            self._clear()
        elif self.finished or (self.folder / "answers.parquet").is_file():
            self._read_table()
            if self.finished:  # the attempt that finished it may have died before it cleared these away
                shutil.rmtree(self.folder / "parts", ignore_errors=True)
        else:
            self._read_parts(mode)

    def add(self, index: int, answers: list[Answer]) -> None:
        """Stores one portion."""
        write_answers(self._part(index), answers, None, self.identity)
        self.parts[index] = answers
        self.event("part", index=index, answers=len(answers))

    def finish(self, answers: list[Answer], grades: list[Grade], summary: dict[str, Any]) -> None:
        """Merges the parts; the summary comes last, so that it never stands without its answers."""
        write_answers(self.folder / "answers.parquet", answers, grades, self.identity)
        write_text(self.folder / "summary.json", json.dumps(summary, indent=1) + "\n")
        shutil.rmtree(self.folder / "parts", ignore_errors=True)
        self.event("end", status="completed", answers=len(answers))

    def summary(self) -> dict[str, Any]:
        """That of the finished evaluation.

        Errors: GspoError when it cannot be read.
        """
        try:
            found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise GspoError(
                f"{self.folder / 'summary.json'} is damaged", str(error), "--overwrite to evaluate again"
            ) from error
        return found

    def event(self, name: str, **details: Any) -> None:
        """Something that happened, with its time."""
        append_lines(self.folder / "events.jsonl", [canonical({"event": name, "time": now()} | details)])

    def _read_table(self) -> None:
        answers, identity = read_answers(self.folder / "answers.parquet")
        self._refuse_other(identity)
        by_key = {a.key: a for a in answers}
        if set(by_key) != {key for keys in self.portions for key in keys} or len(by_key) != len(answers):
            raise GspoError(
                f"{self.folder / 'answers.parquet'} has not every answer once",
                f"it has {len(answers)} rows",
                "--overwrite to evaluate again",
            )
        self.parts = {i: [by_key[key] for key in keys] for i, keys in enumerate(self.portions)}

    def _read_parts(self, mode: Mode) -> None:
        for path in sorted((self.folder / "parts").glob("part-*.parquet")):
            try:
                answers, identity = read_answers(path)
            except GspoError as error:
                self._reject(path, error.why)
                continue
            self._refuse_other(identity)
            index = int(path.stem.removeprefix("part-"))
            if index < len(self.portions) and [a.key for a in answers] == self.portions[index]:
                self.parts[index] = answers
            else:
                self._reject(path, "it holds other answers than its number says")
        if self.parts and mode != "resume":
            stored = sum(map(len, self.parts.values()))
            raise GspoError(
                f"{self.folder} holds an unfinished evaluation",
                f"{stored} of {sum(map(len, self.portions))} answers are stored",
                "--resume to go on from them, or --overwrite to delete them",
            )

    def _reject(self, path: Path, why: str) -> None:
        self.warn(f"{path}: {why}; its answers are drawn again")
        self.event("part_rejected", file=path.name, why=why)

    def _refuse_other(self, identity: dict[str, Any]) -> None:
        if difference := first_difference(identity, self.identity):
            raise GspoError(
                f"{self.folder} holds an evaluation with other settings",
                difference,
                "--overwrite to replace it, or evaluate with the stored settings",
            )

    def _clear(self) -> None:
        strange = [p.name for p in self.folder.iterdir() if p.name not in OURS]
        if strange:
            raise GspoError(
                f"will not delete {self.folder}", f"it holds {strange[0]}, which is not ours", "move it elsewhere"
            )
        (self.folder / "summary.json").unlink(missing_ok=True)  # first, for it stands for the rest
        (self.folder / "answers.parquet").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "parts", ignore_errors=True)

    def _part(self, index: int) -> Path:
        return self.folder / "parts" / f"part-{index:05d}.parquet"


@contextmanager
def open_store(
    folder: Path, identity: dict[str, Any], portions: list[list[Key]], mode: Mode, warn: Callable[[str], None]
) -> Iterator[Store]:
    """The folder, created if need be, under a lock that dies with this process.

    Errors: GspoError when another process evaluates there, or as `Store.prepare` says.
    """
    make_writable(folder)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise GspoError(
                f"{folder} is in use", "another process evaluates there", "wait for it, or evaluate elsewhere: --out"
            ) from error
        store = Store(folder, identity, portions, warn)
        store.prepare(mode)
        yield store
