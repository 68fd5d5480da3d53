"""What makes a stored rollout batch unusable, each with its own message."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError

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


def check_vocabulary(path: Path, ids: Sequence[tuple[int, ...]], size: int, model: str) -> None:
    """Errors: GspoError if a token id is not one of the model's."""
    low, high = min(min(row) for row in ids), max(max(row) for row in ids)
    if low < 0 or high >= size:
        raise GspoError(
            f"{path} holds token id {low if low < 0 else high}",
            f"the vocabulary of {model} has {size} tokens, 0 to {size - 1}",
            "give the model that sampled the batch",
        )
