"""Write a scored rollout batch to a parquet file, one row per response, and read it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gspo_cli.runlog.fs import require_regular, write_atomic
from gspo_cli.types import Group, Problem, Prompt, RolloutBatch, Sample, Score


def write_rollout(batch: RolloutBatch, path: Path, metadata: dict[str, str]) -> None:
    """Writes `path` atomically. `metadata` (temperature, model and tokenizer hashes, ...) goes into the file's metadata
    as `gspo.*`.

    Recorded expert choices are the column `routes`: one flat list per response, whose shape (-1, layers, experts per
    token) is in `gspo.routes_shape`. Factors for the tokens' advantages, from a task that assigns credit, are the
    column `credits`. The parts of several rewards are the column `parts`: label -> value before weighting.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = [
        {
            "step": batch.step,
            "problem_id": _storable(group.problem.id),
            "prompt": _storable(group.problem.prompt),
            "answer": _storable(group.problem.answer),
            "sample": sample.index,
            "seed": sample.seed,
            "prompt_ids": group.prompt.token_ids,
            "token_ids": sample.token_ids,
            "log_probs": sample.log_probs,
            "text": _storable(text),
            "finish": sample.finish,
            "weight_version": sample.weight_version,
            "reward": score.value,
            "reason": _storable(score.reason),
            "routes": None if sample.routes_TLK is None else sample.routes_TLK.ravel(),
            "credits": credits,
            "parts": list(score.parts),
        }
        for group in batch.groups
        for sample, text, score, credits in zip(
            group.samples, group.texts, group.scores, group.credits or [None] * len(group.samples), strict=True
        )
    ]
    fields = [
        ("step", pa.int64()), ("problem_id", pa.string()), ("prompt", pa.string()), ("answer", pa.string()),
        ("sample", pa.int32()), ("seed", pa.int64()), ("prompt_ids", pa.list_(pa.int32())),
        ("token_ids", pa.list_(pa.int32())), ("log_probs", pa.list_(pa.float32())), ("text", pa.string()),
        ("finish", pa.string()), ("weight_version", pa.int64()), ("reward", pa.float64()), ("reason", pa.string()),
    ]  # fmt: skip
    recorded = next((s.routes_TLK for g in batch.groups for s in g.samples if s.routes_TLK is not None), None)
    if recorded is not None:
        fields.append(("routes", pa.list_(pa.from_numpy_dtype(recorded.dtype))))
        metadata = metadata | {"routes_shape": f"-1,{recorded.shape[1]},{recorded.shape[2]}"}
    if any(group.credits for group in batch.groups):
        fields.append(("credits", pa.list_(pa.float64())))
    if any(score.parts for group in batch.groups for score in group.scores):
        fields.append(("parts", pa.map_(pa.string(), pa.float64())))
    schema = pa.schema(fields, metadata={f"gspo.{k}": v for k, v in metadata.items()})
    table = pa.Table.from_pylist(rows, schema=schema)
    with write_atomic(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def _storable(text: str) -> str:
    """The text with `?` for each half of a surrogate pair, which no parquet file can hold."""
    return text.encode("utf-8", "replace").decode()


def read_rollout(path: Path) -> RolloutBatch:
    """The batch that `write_rollout` stored, without its dropped groups.

    Errors: OSError, KeyError or ValueError for any other file; `gspo.max_new_tokens` must be in its metadata.
    """
    import pyarrow.parquet as pq

    require_regular(path)
    table = pq.read_table(path)
    metadata = table.schema.metadata or {}
    shape = [int(n) for n in metadata.get(b"gspo.routes_shape", b"").split(b",") if n]
    rows = table.to_pylist()
    if "routes" in table.column_names:
        dtype = table.schema.field("routes").type.value_type.to_pandas_dtype()
        for row, routes in zip(rows, table["routes"], strict=True):
            row["routes"] = None if routes.as_py() is None else routes.values.to_numpy().astype(dtype).reshape(shape)
    starts = [i for i, row in enumerate(rows) if row["sample"] == 0]
    groups = [_group(rows[a:b]) for a, b in zip(starts, [*starts[1:], len(rows)], strict=True)]
    return RolloutBatch(rows[0]["step"], tuple(groups), int(metadata[b"gspo.max_new_tokens"]))


def _group(rows: list[dict[str, Any]]) -> Group:
    first = rows[0]
    credits = tuple(tuple(row["credits"]) for row in rows) if first.get("credits") is not None else None
    return Group(
        Problem(first["problem_id"], first["prompt"], first["answer"]),
        Prompt(first["problem_id"], tuple(first["prompt_ids"])),
        tuple(
            Sample(row["problem_id"], row["sample"], row["seed"], tuple(row["token_ids"]), tuple(row["log_probs"]),
                   row["finish"], row["weight_version"], row.get("routes"))
            for row in rows
        ),
        tuple(row["text"] for row in rows),
        tuple(Score(row["reward"], row["reason"], tuple(row.get("parts") or ())) for row in rows),
        credits,
    )  # fmt: skip
