"""Answers as rows of parquet files, keyed by (problem, sample)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import Grade
from gspo_cli.runlog.fs import write_atomic

DETAILS = ("verdict_official", "verdict_script", "tests_run", "tests_total", "seconds")
IDENTITY = b"gspo.identity"

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Answer:
    """One sampled answer before grading."""

    problem_id: str
    sample: int
    seed: int | None
    """None for an answer that was sampled elsewhere, like the columns after it."""
    prompt_sha256: str | None
    """Of the prompt's token ids, so with the chat template."""
    text: str
    text_repaired: bool
    """Whether the text held what is no Unicode, replaced by U+FFFD in the file; the grader saw the original."""
    n_tokens: int | None
    finish_reason: str | None

    @property
    def key(self) -> Key:
        """What an answer is kept by."""
        return self.problem_id, self.sample


def storable(text: str) -> tuple[str, bool]:
    """The text with lone surrogates replaced, and whether there were any."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text), True
    return text, False


def write_answers(path: Path, answers: list[Answer], grades: list[Grade] | None, identity: dict[str, Any]) -> None:
    """Writes a part (without grades) or the whole table, which carries what it was generated with."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [
        ("problem_id", pa.string()), ("sample", pa.int32()), ("seed", pa.int64()), ("prompt_sha256", pa.string()),
        ("text", pa.large_string()), ("text_repaired", pa.bool_()), ("n_tokens", pa.int32()),
        ("finish_reason", pa.string()),
    ]  # fmt: skip
    rows = []
    for answer in answers:
        text, repaired = storable(answer.text)
        rows.append(asdict(answer) | {"text": text, "text_repaired": answer.text_repaired or repaired})
    if grades is not None:
        columns += [
            ("extracted", pa.large_string()), ("extracted_by", pa.string()), ("verdict", pa.string()),
            ("reason", pa.string()), ("verdict_official", pa.string()), ("verdict_script", pa.string()),
            ("tests_run", pa.int32()), ("tests_total", pa.int32()), ("seconds", pa.float64()),
            ("grader_error", pa.bool_()),
        ]  # fmt: skip
        for row, grade in zip(rows, grades, strict=True):
            row |= {name: grade.details.get(name) for name in DETAILS}
            row |= {
                "extracted": None if grade.extracted is None else storable(grade.extracted)[0],
                "extracted_by": grade.extracted_by, "verdict": grade.verdict, "reason": grade.reason,
                "grader_error": grade.verdict == "grader_error",
            }  # fmt: skip
    schema = pa.schema(columns, metadata={IDENTITY: json.dumps(identity, sort_keys=True).encode()})
    with write_atomic(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), temporary, compression="zstd")


def read_answers(path: Path) -> tuple[list[Answer], dict[str, Any]]:
    """The answers of a part or table, and the identity they carry.

    Errors: GspoError for a file that is torn, or not one of ours.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [f.name for f in fields(Answer)]
    try:
        table = pq.read_table(path, partitioning=None)
        identity = json.loads((table.schema.metadata or {})[IDENTITY])
        return [Answer(**row) for row in table.select(names).to_pylist()], identity
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise GspoError(
            f"cannot read the stored answers {path}", f"the file is damaged: {first}", "--overwrite to evaluate again"
        ) from error
