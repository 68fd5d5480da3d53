"""A stored rollout batch, read back from its parquet file and checked."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gspo_cli.errors import GspoError
from gspo_cli.runlog.fs import require_regular

AGAIN = "sample the batch again with `gspo rollout`"
ROUNDING = 1e-3  # nats by which a log-probability may exceed 0


def check_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The rows, as dictionaries of the columns that are read.

    Errors: GspoError naming the first response or group that cannot be trained on.
    """
    if not rows:
        raise GspoError(f"{path} has no groups", "it holds no response at all", AGAIN)
    if steps := sorted({row["step"] for row in rows})[1:]:
        raise GspoError(
            f"{path} mixes {len(steps) + 1} rollout batches", "the report is of one batch", "store each in its own file"
        )
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        _check_response(path, row)
        groups[row["problem_id"]].append(row)
    for name, group in groups.items():
        _check_group(path, name, group)


def _check_response(path: Path, row: dict[str, Any]) -> None:
    where = f"response {row['sample']} to problem {row['problem_id']!r} in {path}"
    if row["problem_id"] is None or row["sample"] is None:
        raise GspoError(f"a response in {path} has no key", "its problem_id or sample is null", AGAIN)
    for name in ("prompt_ids", "token_ids"):
        if not row[name] or None in row[name]:
            what = "prompt" if name == "prompt_ids" else "response"
            raise GspoError(f"{where} has an empty {what}", f"{name} is null, empty or holds a null", AGAIN)
    log_probs, num_tokens = row["log_probs"], len(row["token_ids"])
    if log_probs is None:
        raise GspoError(f"{where} has no log_probs", "MiniRL's weights are taken against the sampler's", AGAIN)
    if len(log_probs) != num_tokens:
        raise GspoError(f"{where} has {len(log_probs)} log_probs", f"it has {num_tokens} tokens", AGAIN)
    if not all(p is not None and math.isfinite(p) and p <= ROUNDING for p in log_probs):
        raise GspoError(f"{where} has log_probs that are none", "each must be finite and at most 0", AGAIN)
    if row["reward"] is not None and not math.isfinite(row["reward"]):
        raise GspoError(f"{where} has the reward {row['reward']}", "a reward is finite, or null if unscored", AGAIN)


def _check_group(path: Path, name: str, group: Sequence[dict[str, Any]]) -> None:
    where = f"the group of problem {name!r} in {path}"
    if len(group) == 1:
        raise GspoError(
            f"{where} has one sample",
            "an advantage compares the samples of a prompt",
            "set rollout.samples to 2 or more",
        )
    if len({tuple(row["prompt_ids"]) for row in group}) > 1:
        raise GspoError(f"{where} has several prompts", "the samples of a group answer the same prompt", AGAIN)
    if len({row["sample"] for row in group}) < len(group):
        raise GspoError(f"{where} holds a sample twice", "each sample of a prompt has its own index", AGAIN)


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
        require_regular(path)
        content = path.read_bytes()
        table = pq.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError) as error:
        raise GspoError(f"cannot read {path} as parquet", _first_line(error), SAMPLE_ONE) from error
    about = _metadata(path, table.schema)
    rows = _columns(path, table).to_pylist()
    check_rows(path, rows)
    groups = {name: i for i, name in enumerate(dict.fromkeys(row["problem_id"] for row in rows))}
    rows.sort(key=lambda row: groups[row["problem_id"]])  # stable: samples keep their order
    responses = (
        Response(
            group=groups[row["problem_id"]],
            cut_off=row["finish"] == "length",
            reward=row["reward"],
            **{name: tuple(row[name]) for name in ("prompt_ids", "token_ids", "log_probs")},
        )
        for row in rows
    )
    return StoredBatch(
        path=path,
        sha256=hashlib.sha256(content).hexdigest(),
        responses=tuple(responses),
        num_groups=len(groups),
        temperature=_temperature(path, about["temperature"]),
        model_sha256=about["model_sha256"],
        tokenizer_sha256=about["tokenizer_sha256"],
    )


def find_file(rollout: Path) -> Path:
    """The parquet file itself, or the only one in a folder."""
    if rollout.is_file():
        return rollout
    if not rollout.is_dir():
        raise GspoError(f"no rollout batch at {rollout}", "there is no such file or folder", SAMPLE_ONE)
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
        if about["temperature"]:
            raise GspoError(
                f"{path} does not name the weights that sampled it",
                "the newest batch of a run is kept without their hash, and they are gone when the next one comes",
                "take the first batch, or train with --set rollout.store=20, which keeps every 20th with its hash",
            )
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


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
