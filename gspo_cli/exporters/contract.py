"""What an exporter is: it takes the rows of one run, in the order of its log."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

StepAxis = Literal["rollout_batch", "update"]


@dataclass(frozen=True, slots=True)
class LogRow:
    """One line of a log, as trackers take it."""

    axis: StepAxis
    """What `step` counts."""
    step: int
    """Rollout batches from 1 (0 = before training), or optimizer steps of the whole run from 1."""
    time: float
    """When it was logged, in seconds since 1970."""
    values: dict[str, float]
    """By metric; what does not apply is absent. Values of an optimizer step are called `updates/...`, those of the
    clock and the machine `perf/...`."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The run that is mirrored."""

    run_id: str
    study: str
    run: str
    arm: str
    config: dict[str, Any]


class Exporter(Protocol):
    """One run in one tracker."""

    def __init__(self, origin: Origin, folder: Path) -> None:
        """Will write into an empty folder. Errors: ImportError without the tracker's library."""

    def write(self, rows: Sequence[LogRow]) -> None:
        """Takes more rows; afterwards they are on the disk."""

    def close(self) -> None:
        """No row follows."""

    @staticmethod
    def how_to_read(folder: Path) -> str:
        """The command that shows what lies in a folder of mirrored runs."""
