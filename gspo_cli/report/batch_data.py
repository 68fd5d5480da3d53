"""A stored rollout batch, read back from its parquet file and checked."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gspo_cli.errors import GspoError
from gspo_cli.report.batch_checks import check_rows

COLUMNS = pa.schema(
    [
        ("step", pa.int64()), ("problem_id", pa.string()), ("sample", pa.int32()), ("prompt_ids", pa.list_(pa.int32())),
        ("token_ids", pa.list_(pa.int32())), ("log_probs", pa.list_(pa.float32())), ("finish", pa.string()),
        ("reward", pa.float64()),
    ]
)  # fmt: skip
"""What is read of it, one row a response."""
METADATA = ("model_sha256", "tokenizer_sha256", "temperature")
SAMPLE_ONE = "`gspo rollout --out FOLDER` stores one"


@dataclass(frozen=True, slots=True)
class Response:
    """One row."""

    group: int
    """Index of its prompt, in order of appearance."""
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    """The sampler's, of each token, in nats."""
    reward: float | None
    """None where the grader failed."""
    cut_off: bool
    """True if the length limit ended it."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """The responses of one rollout batch, whole groups together."""

    path: Path
    sha256: str
    """Of the file."""
    responses: tuple[Response, ...]
    num_groups: int
    temperature: float
    model_sha256: str
    """The weights that sampled it."""
    tokenizer_sha256: str

    @property
    def max_length(self) -> tuple[int, bool]:
        """The generation limit, and whether it is known: a response that the limit ended is as long as the limit;
        without one, the longest response is a lower bound."""
        cut = [len(r.token_ids) for r in self.responses if r.cut_off]
        return (max(cut), True) if cut else (max(len(r.token_ids) for r in self.responses), False)

    def of_group(self, group: int) -> list[int]:
        """Indices of a group's responses."""
        return [i for i, r in enumerate(self.responses) if r.group == group]


def read_batch(rollout: Path) -> StoredBatch:
    """The batch in a parquet file, or in a folder that holds one.

    Errors: GspoError when there is no such file, when it is no rollout batch, or when a row cannot be trained on.
    """
    path = find_file(rollout)
    try:
        content = path.read_bytes()
        table = pq.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError) as error:
        raise GspoError(f"cannot read {path} as parquet", _first_line(error), SAMPLE_ONE) from error
    about = _metadata(path, table.schema)
    rows = _columns(path, table).to_pylist()
    check_rows(path, rows)
    groups = {name: i for i, name in enumerate(dict.fromkeys(row["problem_id"] for row in rows))}
    rows.sort(key=lambda row: groups[row["problem_id"]])  # stable: samples keep their order
    return StoredBatch(
        path=path,
        sha256=hashlib.sha256(content).hexdigest(),
        responses=tuple(_response(row, groups) for row in rows),
        num_groups=len(groups),
        temperature=_temperature(path, about["temperature"]),
        model_sha256=about["model_sha256"],
        tokenizer_sha256=about["tokenizer_sha256"],
    )


def find_file(rollout: Path) -> Path:
    """The parquet file itself, or the only one in a folder."""
    if not rollout.is_dir():
        if not rollout.is_file():
            raise GspoError(f"no rollout batch at {rollout}", "there is no such file or folder", SAMPLE_ONE)
        return rollout
    found = sorted(rollout.glob("*.parquet"))
    if not found:
        raise GspoError(f"no rollout batch in {rollout}", "the folder holds no .parquet file", SAMPLE_ONE)
    if len(found) > 1:
        raise GspoError(
            f"{len(found)} rollout batches in {rollout}", "the report is of one batch", f"name one: {found[0]}"
        )
    return found[0]


def _metadata(path: Path, schema: pa.Schema) -> dict[str, str]:
    raw = schema.metadata or {}
    about = {name: raw.get(f"gspo.{name}".encode(), b"").decode("utf-8", "replace") for name in METADATA}
    if missing := [f"gspo.{name}" for name in METADATA if not about[name]]:
        raise GspoError(f"{path} is no stored rollout batch", f"its metadata lacks {', '.join(missing)}", SAMPLE_ONE)
    return about


def _columns(path: Path, table: pa.Table) -> pa.Table:
    """The columns that are read, in their types."""
    if missing := [name for name in COLUMNS.names if name not in table.schema.names]:
        raise GspoError(f"{path} is no stored rollout batch", f"it lacks the columns {', '.join(missing)}", SAMPLE_ONE)
    try:
        return table.select(COLUMNS.names).cast(COLUMNS)
    except pa.ArrowException as error:
        raise GspoError(f"{path} has columns of other types", _first_line(error), SAMPLE_ONE) from error


def _temperature(path: Path, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise GspoError(
            f"{path} was sampled at temperature {text}",
            "importance ratios need the distribution that was sampled from, so a temperature above 0",
            "sample a batch with rollout.temperature = 1.0",
        )
    return value


def _response(row: dict[str, Any], groups: dict[str, int]) -> Response:
    return Response(
        group=groups[row["problem_id"]],
        prompt_ids=tuple(row["prompt_ids"]),
        token_ids=tuple(row["token_ids"]),
        log_probs=tuple(row["log_probs"]),
        reward=row["reward"],
        cut_off=row["finish"] == "length",
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
