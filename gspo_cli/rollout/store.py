"""Write a scored rollout batch to a parquet file, one row per response, and read it back."""

from collections.abc import Sequence
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

    group_of = pa.array([index for index, group in enumerate(batch.groups) for _ in group.samples], pa.int64())
    problems = [group.problem for group in batch.groups]
    prompts: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
        "problem_id": (pa.string(), [_storable(problem.id) for problem in problems]),
        "prompt": (pa.string(), [_storable(problem.prompt) for problem in problems]),
        "answer": (pa.string(), [_storable(problem.answer) for problem in problems]),
        "prompt_ids": (pa.list_(pa.int32()), [group.prompt.token_ids for group in batch.groups]),
    }  # converted once a group, then repeated
    samples = [sample for group in batch.groups for sample in group.samples]
    scores = [score for group in batch.groups for score in group.scores]
    columns: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
        "step": (pa.int64(), [batch.step] * len(samples)),
        "sample": (pa.int32(), [sample.index for sample in samples]),
        "seed": (pa.int64(), [sample.seed for sample in samples]),
        "token_ids": (pa.list_(pa.int32()), [sample.token_ids for sample in samples]),
        "log_probs": (pa.list_(pa.float32()), [sample.log_probs for sample in samples]),
        "text": (pa.string(), [_storable(text) for group in batch.groups for text in group.texts]),
        "finish": (pa.string(), [sample.finish for sample in samples]),
        "weight_version": (pa.int64(), [sample.weight_version for sample in samples]),
        "reward": (pa.float64(), [score.value for score in scores]),
        "reason": (pa.string(), [_storable(score.reason) for score in scores]),
    }
    recorded = next((sample.routes_TLK for sample in samples if sample.routes_TLK is not None), None)
    if recorded is not None:
        flat = [None if sample.routes_TLK is None else sample.routes_TLK.ravel() for sample in samples]
        columns["routes"] = (pa.list_(pa.from_numpy_dtype(recorded.dtype)), flat)
        metadata = metadata | {"routes_shape": f"-1,{recorded.shape[1]},{recorded.shape[2]}"}
    if any(group.credits for group in batch.groups):
        factors = [credit for g in batch.groups for credit in g.credits or [None] * len(g.samples)]
        columns["credits"] = (pa.list_(pa.float64()), factors)
    if any(score.parts for score in scores):
        columns["parts"] = (pa.map_(pa.string(), pa.float64()), [list(score.parts) for score in scores])
    arrays = {name: pa.array(values, kind) for name, (kind, values) in columns.items()}
    table = pa.table({name: pa.array(values, kind).take(group_of) for name, (kind, values) in prompts.items()} | arrays)
    table = table.replace_schema_metadata({f"gspo.{key}": value for key, value in metadata.items()})
    with write_atomic(path) as temporary:
        # of the columns only experts' numbers gain by a dictionary: log-probabilities hardly ever repeat
        pq.write_table(
            table, temporary, compression="zstd", use_dictionary=["routes.list.element"], write_statistics=False
        )


def _storable(text: str) -> str:
    """The text with `?` for each half of a surrogate pair, which no parquet file can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


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
