"""A stored rollout batch, read back from its parquet file and checked."""

import hashlib
import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gspo_cli.errors import GspoError
from gspo_cli.runlog.fs import require_regular

AGAIN = "sample the batch again with `gspo rollout`"
SAMPLE_ONE = "`gspo rollout --out FOLDER` stores one"
METADATA = ("model_sha256", "tokenizer_sha256", "temperature")
ROUNDING = 1e-3  # nats by which a log-probability may exceed 0


class Response(BaseModel):
    """What is read of a row."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    step: int
    problem_id: str
    sample: int
    prompt_ids: Annotated[tuple[int, ...], Field(min_length=1)]
    token_ids: Annotated[tuple[int, ...], Field(min_length=1)]
    log_probs: tuple[Annotated[float, Field(le=ROUNDING)], ...]
    """The sampler's, of each token, in nats."""
    finish: str
    reward: float | None
    """None where the grader failed."""

    @model_validator(mode="after")
    def _one_log_prob_a_token(self) -> Self:
        if len(self.log_probs) != len(self.token_ids):
            raise ValueError(f"{len(self.log_probs)} log_probs for {len(self.token_ids)} tokens")
        return self


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """The responses of one rollout batch, whole groups together."""

    path: Path
    sha256: str
    """Of the file."""
    responses: tuple[Response, ...]
    groups: tuple[list[int], ...]
    """Indices of each prompt's responses; prompts in order of appearance."""
    temperature: float
    model_sha256: str
    """The weights that sampled it."""
    tokenizer_sha256: str

    @property
    def max_length(self) -> tuple[int, bool]:
        """The generation limit, and whether it is known: a response that the limit ended is as long as the limit;
        without one, the longest response is a lower bound."""
        cut = [len(r.token_ids) for r in self.responses if r.finish == "length"]
        return (max(cut), True) if cut else (max(len(r.token_ids) for r in self.responses), False)


def read_batch(rollout: Path) -> StoredBatch:
    """The batch in a parquet file, or in a folder that holds one.

    Errors: GspoError when there is no such file, when it is no rollout batch, or when a row cannot be trained on.
    """
    path = find_file(rollout)
    try:
        require_regular(path)
        content = path.read_bytes()
        # without threads: where the command ends at once, for a fault, theirs would abort it
        table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
        rows = table.select([name for name in table.column_names if name in Response.model_fields]).to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise GspoError(f"cannot read {path} as parquet", why, SAMPLE_ONE) from error
    about = _metadata(path, table.schema)
    by_prompt: dict[str, list[Response]] = {}
    for response in _responses(path, rows):
        by_prompt.setdefault(response.problem_id, []).append(response)
    for name, group in by_prompt.items():
        _check_group(path, name, group)
    ends = list(accumulate(map(len, by_prompt.values()), initial=0))
    return StoredBatch(
        path=path,
        sha256=hashlib.sha256(content).hexdigest(),
        responses=tuple(response for group in by_prompt.values() for response in group),
        groups=tuple(list(range(*bounds)) for bounds in pairwise(ends)),
        temperature=_temperature(path, about["temperature"]),
        model_sha256=about["model_sha256"],
        tokenizer_sha256=about["tokenizer_sha256"],
    )


def _responses(path: Path, rows: list[dict[str, Any]]) -> list[Response]:
    """The rows. Errors: GspoError naming the first one that cannot be trained on."""
    responses = []
    for row, values in enumerate(rows, start=1):
        try:
            responses.append(Response.model_validate(values))
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            place = ".".join(map(str, wrong["loc"])) or "log_probs"
            raise GspoError(f"row {row} of {path} is no response", f"{place}: {wrong['msg']}", AGAIN) from error
    if not responses:
        raise GspoError(f"{path} has no groups", "it holds no response at all", AGAIN)
    if steps := {response.step for response in responses} - {responses[0].step}:
        raise GspoError(
            f"{path} mixes {len(steps) + 1} rollout batches", "the report is of one batch", "store each in its own file"
        )
    return responses


def _check_group(path: Path, name: str, group: list[Response]) -> None:
    """Errors: GspoError for a group that gives no advantage, or is not one."""
    where = f"the group of problem {name!r} in {path}"
    if len(group) == 1:
        raise GspoError(
            f"{where} has one sample",
            "an advantage compares the samples of a prompt",
            "set rollout.samples to 2 or more",
        )
    if len({response.prompt_ids for response in group}) > 1:
        raise GspoError(f"{where} has several prompts", "the samples of a group answer the same prompt", AGAIN)
    if len({response.sample for response in group}) < len(group):
        raise GspoError(f"{where} holds a sample twice", "each sample of a prompt has its own index", AGAIN)


def find_file(rollout: Path) -> Path:
    """The parquet file itself, or the only one in a folder."""
    if rollout.is_file():
        return rollout
    found = sorted(rollout.glob("*.parquet"))
    if not found:
        raise GspoError(f"no rollout batch at {rollout}", "no file, and no folder with a .parquet file", SAMPLE_ONE)
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
