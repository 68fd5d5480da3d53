"""The folder of one evaluation: answers in parts while it runs, then one table and a summary."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from gspo_cli.errors import GspoError, reason
from gspo_cli.evals.benchmark import Grade
from gspo_cli.evals.settings import first_difference
from gspo_cli.rollout.engine import SampleKey
from gspo_cli.runlog.folder import make_writable
from gspo_cli.runlog.fs import append_lines, refuse_link, require_regular, write_atomic, write_text
from gspo_cli.runlog.log import canonical, now
from gspo_cli.types import FinishReason

Mode = Literal["new", "resume", "overwrite"]
OURS = {"parts", "answers.parquet", "summary.json", "events.jsonl", ".lock"}
IDENTITY = b"gspo.identity"
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Answer:
    """One sampled answer before grading."""

    problem_id: str
    sample: int
    seed: int | None
    """None for an answer that was sampled elsewhere; so for the columns that follow."""
    prompt_sha256: str | None
    """Of the prompt's token ids, chat template included."""
    text: str
    text_repaired: bool
    """Whether the text held invalid Unicode, replaced by U+FFFD in the file; the grader saw the original."""
    n_tokens: int | None
    finish_reason: FinishReason | None
    response_prefix: str = ""
    """What the prompt began of the response, `<think>` or nothing: graded with the text."""

    @property
    def key(self) -> SampleKey:
        """What an answer is stored by."""
        return self.problem_id, self.sample


@contextmanager
def open_store(
    folder: Path, identity: dict[str, Any], portions: list[list[SampleKey]], mode: Mode, warn: Callable[[str], None]
) -> Iterator[Store]:
    """The folder, created if necessary, under a lock that ends with this process.

    Errors: GspoError when another process evaluates there, and as `Store.prepare`.
    """
    make_writable(folder)
    refuse_link(folder / ".lock")
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            hint = "wait for it, or name another folder with --out"
            raise GspoError(f"{folder} is in use", "another process evaluates there", hint) from error
        store = Store(folder, identity, portions, warn)
        store.prepare(mode)
        yield store


class Store:
    """An evaluation's folder, locked by this process (see `open_store`)."""

    def __init__(
        self, folder: Path, identity: dict[str, Any], portions: list[list[SampleKey]], warn: Callable[[str], None]
    ) -> None:
        self.folder, self.identity, self.portions, self.warn = folder, identity, portions, warn
        self.table = folder / "answers.parquet"
        self.parts: dict[int, list[Answer]] = {}
        """Portion -> its answers, for the portions that are stored."""

    @property
    def finished(self) -> bool:
        """Whether it has a summary."""
        return (self.folder / "summary.json").is_file()

    def prepare(self, mode: Mode) -> None:
        """Read what is stored. Errors: GspoError for another evaluation, or an unfinished one without `resume`."""
        for leftover in self.folder.rglob(".tmp-*"):
            leftover.unlink()
        if mode == "overwrite":
            self._clear()
        elif self.finished or self.table.is_file():
            self._read_table()
            if self.finished:  # the attempt that finished it may have died before removing these
                shutil.rmtree(self.folder / "parts", ignore_errors=True)
        else:
            self._read_parts(mode)

    def add(self, index: int, answers: list[Answer]) -> None:
        """Store one portion."""
        _write_answers(self.folder / "parts" / f"part-{index:05d}.parquet", answers, None, self.identity)
        self.parts[index] = answers
        self.event("part", index=index, answers=len(answers))

    def finish(self, answers: list[Answer], grades: list[Grade], summary: dict[str, Any]) -> None:
        """Merge the parts. The summary is written last, so it never exists without its answers and their grades."""
        (self.folder / "summary.json").unlink(missing_ok=True)
        _write_answers(self.table, answers, grades, self.identity)
        write_text(self.folder / "summary.json", json.dumps(summary, indent=1) + "\n")
        shutil.rmtree(self.folder / "parts", ignore_errors=True)
        self.event("end", status="completed", answers=len(answers))

    def summary(self) -> dict[str, Any]:
        """The summary of the finished evaluation. Errors: GspoError when it cannot be read."""
        path = self.folder / "summary.json"
        try:
            summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            _ = summary["grader"].keys(), summary["data"].keys()
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise GspoError(f"{path} is damaged", str(error), "--overwrite to evaluate again") from error
        return summary

    def event(self, name: str, **details: Any) -> None:
        """Log an event with its time."""
        append_lines(self.folder / "events.jsonl", [canonical({"event": name, "time": now()} | details)])

    def _read_table(self) -> None:
        answers, identity = _read_answers(self.table)
        self._check_identity(identity)
        by_key = {a.key: a for a in answers}
        if set(by_key) != {key for keys in self.portions for key in keys} or len(by_key) != len(answers):
            raise GspoError(
                f"{self.table} does not hold every answer once",
                f"it has {len(answers)} rows",
                "--overwrite to evaluate again",
            )
        self.parts = {i: [by_key[key] for key in keys] for i, keys in enumerate(self.portions)}

    def _read_parts(self, mode: Mode) -> None:
        for path in sorted((self.folder / "parts").glob("part-*.parquet")):
            try:
                answers, identity = _read_answers(path)
            except GspoError as error:
                self._reject(path, error.why)
                continue
            self._check_identity(identity)
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
                "--resume to continue from them, or --overwrite to delete them",
            )

    def _reject(self, path: Path, why: str) -> None:
        self.warn(f"{path}: {why}; its answers are drawn again")
        self.event("part_rejected", file=path.name, why=why)

    def _check_identity(self, stored: dict[str, Any]) -> None:
        if difference := first_difference(stored, self.identity):
            raise GspoError(
                f"{self.folder} holds an evaluation with other settings",
                difference,
                "--overwrite to replace it, or evaluate with the stored settings",
            )

    def _clear(self) -> None:
        if unknown := [p.name for p in self.folder.iterdir() if p.name not in OURS]:
            raise GspoError(
                f"will not delete {self.folder}", f"it holds {unknown[0]}, which is not ours", "move it elsewhere"
            )
        (self.folder / "summary.json").unlink(missing_ok=True)  # first: it marks the rest as complete
        self.table.unlink(missing_ok=True)
        shutil.rmtree(self.folder / "parts", ignore_errors=True)


ANSWER_COLUMNS = {
    "problem_id": "string", "sample": "int32", "seed": "int64", "prompt_sha256": "string", "text": "large_string",
    "text_repaired": "bool_", "n_tokens": "int32", "finish_reason": "string", "response_prefix": "string",
}  # fmt: skip
GRADE_COLUMNS = {
    "extracted": "large_string", "extracted_by": "string", "verdict": "string", "reason": "string",
    "verdict_official": "string", "verdict_script": "string", "tests_run": "int32", "tests_total": "int32",
    "seconds": "float64", "grader_error": "bool_", "reward": "float64",
}  # fmt: skip
"""Name -> type in pyarrow; a value that a row lacks is null."""


def _write_answers(path: Path, answers: list[Answer], grades: list[Grade] | None, identity: dict[str, Any]) -> None:
    """Write a part (without grades) or the whole table; both carry the identity of what generated them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns, rows = ANSWER_COLUMNS, []
    for answer in answers:
        text = _valid_unicode(answer.text)
        rows.append(asdict(answer) | {"text": text, "text_repaired": answer.text_repaired or text != answer.text})
    if grades is not None:
        columns = ANSWER_COLUMNS | GRADE_COLUMNS
        for row, grade in zip(rows, grades, strict=True):
            row |= dict(grade.details) | {
                "extracted": grade.extracted and _valid_unicode(grade.extracted),
                "extracted_by": grade.extracted_by,
                "verdict": grade.verdict,
                "reason": grade.reason,
                "grader_error": grade.verdict == "grader_error",
                "reward": grade.value,
            }
    types = [(name, getattr(pa, kind)()) for name, kind in columns.items()]
    schema = pa.schema(types, metadata={IDENTITY: json.dumps(identity, sort_keys=True).encode()})
    with write_atomic(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), temporary, compression="zstd")


def _valid_unicode(text: str) -> str:
    """The text with lone surrogates replaced by U+FFFD."""
    return SURROGATE.sub("\ufffd", text)


def _read_answers(path: Path) -> tuple[list[Answer], dict[str, Any]]:
    """The answers of a part or table, and its identity. Errors: GspoError for a file that is torn or not ours."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [f.name for f in fields(Answer)]
    try:
        require_regular(path)
        table = pq.read_table(path, partitioning=None)
        identity = json.loads((table.schema.metadata or {})[IDENTITY])
        return [Answer(**row) for row in table.select(names).to_pylist()], identity
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        why = f"the file is damaged: {reason(error)}"
        raise GspoError(f"cannot read the stored answers {path}", why, "--overwrite to evaluate again") from error
