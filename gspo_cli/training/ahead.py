"""Rollout batches that are sampled ahead of their training: `rollout.max_lag`.

Batch t is sampled right before the training on batch t - max_lag, so with the weights of batch t - 1 - max_lag, or with
the start model's. No old weights are kept, only what they drew, and what is sampled when depends on counts alone: the
same seed gives the same log, and a checkpoint that holds the queue resumes exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gspo_cli.checkpoint.state import State
from gspo_cli.config import Recipe
from gspo_cli.rollout.store import read_rollout, write_rollout
from gspo_cli.types import RolloutBatch

FOLDER = "ahead"


def due(step: int, num_queued: int, recipe: Recipe) -> range:
    """The rollout batches to sample before the training on `step`; none beyond the last one that is trained on."""
    return range(step + num_queued, min(step + recipe.rollout.max_lag, recipe.train.steps) + 1)


def save_ahead(batches: Iterable[RolloutBatch], checkpoint: Path) -> None:
    """Writes each batch into a file of a checkpoint, and the groups that dynamic sampling put aside into another."""
    for batch in batches:
        (checkpoint / FOLDER).mkdir(exist_ok=True)
        about = {"max_new_tokens": str(batch.max_new_tokens)}
        write_rollout(batch, file_of(checkpoint, batch.step), about)
        if batch.dropped:
            aside = replace(batch, groups=batch.dropped, dropped=())
            write_rollout(aside, file_of(checkpoint, batch.step, ".dropped"), about)


def load_ahead(checkpoint: Path, state: State) -> list[RolloutBatch]:
    """The batches that a checkpoint's state counts.

    Errors: OSError, KeyError or ValueError for a file that is missing or is no such batch.
    """
    found = []
    for step in range(state.step + 1, state.step + 1 + state.ahead):
        aside = file_of(checkpoint, step, ".dropped")
        dropped = read_rollout(aside).groups if aside.exists() else ()
        found.append(replace(read_rollout(file_of(checkpoint, step)), dropped=dropped))
    return found


def file_of(checkpoint: Path, step: int, suffix: str = "") -> Path:
    """Where a batch stands in a checkpoint."""
    return checkpoint / FOLDER / f"step_{step:06d}{suffix}.parquet"
