"""What happens in a run, as small events for whoever shows it; a worker process sends them as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from gspo_cli.errors import ExitCode, GspoError

if TYPE_CHECKING:
    from gspo_cli.types import RolloutBatch


@dataclass(frozen=True)
class PhaseBegun:
    """The run does something else now: `rollout`, `score`, `update`, ..."""

    phase: str


@dataclass(frozen=True)
class SamplingProgress:
    """How far an engine is with one request."""

    done: int
    """Responses that have ended."""
    wanted: int
    tokens: int
    """Drawn so far, over all responses."""
    share: float
    """From 0 to 1: how much is done if no other response ended before the length limit; so never too much."""


@dataclass(frozen=True)
class EvaluationProgress:
    """How far an evaluation during training is, as its next request to the engine begins."""

    done: int
    """Answers of the benchmark that have been drawn."""
    wanted: int


@dataclass(frozen=True)
class BatchSampled:
    """A rollout batch is scored, and not yet trained on."""

    batch: RolloutBatch


@dataclass(frozen=True)
class BatchDone:
    """A rollout batch has been trained on."""

    step: int
    values: dict[str, float | None]
    """Its pooled metrics and times."""


@dataclass(frozen=True)
class PreflightDone:
    """The first batch was checked before any update."""

    values: dict[str, float]


@dataclass(frozen=True)
class Warned:
    """Something about the run that its user should know."""

    text: str


@dataclass(frozen=True)
class Noted:
    """A line to show: a resume, a refused checkpoint, a failed save."""

    text: str


@dataclass(frozen=True)
class SignalReceived:
    """The run is asked to save and end. Emitted within the signal handler, where nothing may wait for a lock."""


@dataclass(frozen=True)
class WorkerIs:
    """A run's worker process has started (`training`), was lost (`waiting` for another), or was asked to save and end
    (`stopping`)."""

    state: str


@dataclass(frozen=True)
class WorkerEnded:
    """A worker's last event: its exit code, and the three parts of its error if it failed."""

    code: int | None
    """None if the worker was lost, and the code with it."""
    message: str = ""
    why: str = ""
    hint: str = ""

    @property
    def failed(self) -> bool:
        """Whether the study must end; a run that a training guard stops is a result."""
        return self.code not in (ExitCode.OK, ExitCode.GUARD)

    def error(self) -> GspoError:
        """The error that it carries."""
        code = ExitCode(self.code) if self.code in list(ExitCode) else ExitCode.UNEXPECTED
        return GspoError(self.message, self.why, self.hint, code)


RunEvent = (
    PhaseBegun | SamplingProgress | EvaluationProgress | BatchSampled | BatchDone | PreflightDone | Warned | Noted
    | SignalReceived
)  # fmt: skip
Event = RunEvent | WorkerIs | WorkerEnded
Emit = Callable[[Event], None]
"""The sink that takes a run's events."""
RunEmit = Callable[[str, Event], None]
"""The same for several runs: with the run's name."""
LOCAL = (BatchSampled, SignalReceived)
"""Events that stay in their process."""
KINDS = {kind.__name__: kind for kind in get_args(Event)}


def ignore(_event: Event) -> None:
    """The sink of a run that nobody watches."""


def to_line(event: Event) -> str:
    """An event as a line of JSON."""
    return json.dumps({"event": type(event).__name__} | vars(event)) + "\n"


def from_line(line: str) -> Event:
    """The reverse of `to_line`."""
    fields = json.loads(line)
    event: Event = KINDS[fields.pop("event")](**fields)
    return event
