"""`state.json`: what an exact continuation needs besides weights and optimizer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from gspo_cli.checkpoint.manifest import Damaged


class Strict(BaseModel):
    """No unknown key, no infinite number, no guessing of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class LogPosition(Strict):
    """The end of `metrics.jsonl`."""

    num_bytes: int
    num_lines: int
    head: str


class State(Strict):
    """A run between two rollout batches. It holds nothing of the clock or the attempt, so that a resumed run's
    checkpoints equal an uninterrupted run's byte for byte."""

    version: Literal[1] = 1
    step: int
    """Rollout batches done; the position in the data and the learning rate follow from it and `portions`."""
    portions: int
    """Portions of the prompt stream consumed."""
    ahead: int = 0
    """Rollout batches sampled ahead of their training, kept beside this file."""
    updates: int
    """Mini-batches gone through, whether their update was applied or not."""
    totals: dict[str, int]
    """The compute/* counters."""
    guards: dict[str, int]
    """What the guards count; without it a resume would reset their limits."""
    widest: float
    outside: bool
    """What the check of the clip range has seen."""
    log: LogPosition
    score: float | None
    """The metric `checkpoint.best` of the rollout batch, for which higher is better here."""
    weights_sha256: str
    start_sha256: str
    """Of the start model, which the KL penalty refers to."""
    config_sha256: str
    changes: dict[str, Any]
    """Keys of the recipe that a resume was allowed to change, with their values."""


def parse_state(text: str) -> State:
    """Errors: Damaged for text that is no state of this version."""
    try:
        return State.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Damaged(f"state.json: {'.'.join(map(str, first['loc']))} {first['msg']}") from error
