"""A scored rollout batch as a parquet file, one row a response, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gspo_cli.runlog.fs import write_atomic
from gspo_cli.types import Group, Problem, Prompt, RolloutBatch, Sample, Score


def write_rollout(batch: RolloutBatch, path: Path, metadata: dict[str, str]) -> None:
    """Writes `path` whole or not at all. `metadata` (temperature, model and tokenizer hashes, ...) goes into the
    file's own metadata under `gspo.*`.

    Expert choices, where recorded, are the column `routes`: one flat list a response, of the shape (-1, layers, experts
    a token) that `gspo.routes_shape` gives. Factors on the tokens' advantages, from a task that assigns credit, are the
    column `credits`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = [
        {
            "step": batch.step,
            "problem_id": group.problem.id,
            "prompt": group.problem.prompt,
            "answer": group.problem.answer,
            "sample": sample.index,
            "seed": sample.seed,
            "prompt_ids": group.prompt.token_ids,
            "token_ids": sample.token_ids,
            "log_probs": sample.log_probs,
            "text": text.encode("utf-8", "replace").decode(),
            "finish": sample.finish,
            "weight_version": sample.weight_version,
            "reward": score.value,
            "reason": score.reason,
        }
        for group in batch.groups
        for sample, text, score in zip(group.samples, group.texts, group.scores, strict=True)
    ]
    fields = [
        ("step", pa.int64()), ("problem_id", pa.string()), ("prompt", pa.string()), ("answer", pa.string()),
        ("sample", pa.int32()), ("seed", pa.int64()), ("prompt_ids", pa.list_(pa.int32())),
        ("token_ids", pa.list_(pa.int32())), ("log_probs", pa.list_(pa.float32())), ("text", pa.string()),
        ("finish", pa.string()), ("weight_version", pa.int64()), ("reward", pa.float64()), ("reason", pa.string()),
    ]  # fmt: skip
    routes = [s.routes_TLK for g in batch.groups for s in g.samples]
    recorded = next((r for r in routes if r is not None), None)
    if recorded is not None:
        fields.append(("routes", pa.list_(pa.from_numpy_dtype(recorded.dtype))))
        metadata = metadata | {"routes_shape": f"-1,{recorded.shape[1]},{recorded.shape[2]}"}
        rows = [r | {"routes": None if one is None else one.ravel()} for r, one in zip(rows, routes, strict=True)]
    if any(group.credits for group in batch.groups):
        fields.append(("credits", pa.list_(pa.float64())))
        credits = [c for g in batch.groups for c in g.credits or [None] * len(g.samples)]
        rows = [r | {"credits": one} for r, one in zip(rows, credits, strict=True)]
    schema = pa.schema(fields, metadata={f"gspo.{k}": v for k, v in metadata.items()})
    table = pa.Table.from_pylist(rows, schema=schema)
    with write_atomic(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_rollout(path: Path) -> RolloutBatch:
    """What `write_rollout` was given, but for the groups put aside.

    Errors: OSError, KeyError or ValueError when it is no such file; `gspo.max_new_tokens` must be in its metadata.
    """
    import pyarrow.parquet as pq

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
    """The rows of one prompt."""
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
        tuple(Score(row["reward"], row["reason"]) for row in rows),
        credits,
    )  # fmt: skip
