"""A scored rollout batch as a parquet file, one row a response."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gspo_cli.runlog.fs import write_atomic
from gspo_cli.types import RolloutBatch


def write_rollout(batch: RolloutBatch, path: Path, metadata: dict[str, str]) -> None:
    """Writes `path` whole or not at all. `metadata` (temperature, model and tokenizer hashes, ...) goes into the
    file's own metadata under `gspo.*`.

    Expert choices, where recorded, are the column `routes`: one flat list a response, of the shape (-1, layers, experts
    a token) that `gspo.routes_shape` gives.
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
    schema = pa.schema(fields, metadata={f"gspo.{k}": v for k, v in metadata.items()})
    table = pa.Table.from_pylist(rows, schema=schema)
    with write_atomic(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
