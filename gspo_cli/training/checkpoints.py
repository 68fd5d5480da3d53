"""When a run is saved, and how it stops on a signal."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from torch import Tensor

from gspo_cli.checkpoint.manifest import Damaged
from gspo_cli.checkpoint.protocol import checkpoints, rotate, write
from gspo_cli.checkpoint.state import LogPosition, State, parse_state
from gspo_cli.checkpoint.tensors import generator_tensors
from gspo_cli.config import CheckpointConfig
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.sharding import is_sharded
from gspo_cli.ranks import ALONE, Ranks
from gspo_cli.runlog import fs
from gspo_cli.runlog.schema import metric
from gspo_cli.training.ahead import save_ahead
from gspo_cli.training.saved import GENERATORS, STATE, Saved, collect, save_all
from gspo_cli.training.signals import CODES

if TYPE_CHECKING:
    from gspo_cli.training.loop import Session


@dataclass
class Checkpoints:
    """Saves a run at the boundary between two rollout batches, where nothing is in flight."""

    run: Path
    config: CheckpointConfig
    attempt: int
    identity: dict[str, Any]
    """`start_sha256`, `config_sha256` and `changes` of the state."""
    note: Callable[[str], None]
    ranks: Ranks = ALONE
    position: LogPosition | None = None
    """The end of the log at the last boundary; an evaluation after it is repeated by a resume."""
    generators: dict[str, Tensor] = field(default_factory=dict)
    """The global generators' states there; sampling that is abandoned later may draw from them."""
    saved: int | None = None
    """Step of the last checkpoint."""
    missed: int = 0
    saved_at: float = field(default_factory=time.monotonic)
    score: float | None = None
    """The metric `best` of the last rollout batch, negative if lower is better."""

    def boundary(self, session: Session, values: dict[str, float | None]) -> None:
        """Called after each rollout batch, and before the first one.

        Errors: GspoError when a signal asked for the end (129, 130, 143), or after too many failed saves (6).
        """
        log, best = session.log, self.config.best
        signalled = session.signals.agreed()
        if best is not None and (value := values.get(best)) is not None:
            self.score = -value if metric(best).better == "lower" else value
        self.position = LogPosition(num_bytes=log.num_bytes, num_lines=log.seq, head=log.head)
        self.generators = generator_tensors()
        last = session.step == session.run.recipe.train.steps
        if any(self.ranks.everywhere(lambda: self.is_due(session.step))) or last or signalled:
            self.save(session)
            if self.missed and last:
                raise self.storage_error()
        if signalled:
            self.stop(session, signalled)

    def go_on(self, state: State) -> None:
        """Continues after this state's checkpoint, and with the rotation that a crash may have prevented; a damaged
        newer one is left until its step is saved again."""
        self.position, self.saved, self.score = state.log, state.step, state.score
        self.generators = generator_tensors()
        if self.ranks.first and checkpoints(self.run / "checkpoints")[-1].name == f"step-{state.step:06d}":
            self.rotate()

    def end(self, session: Session) -> dict[str, Any]:
        """The end of the log, for the last event: the chain alone would not show that the file was cut."""
        log = session.log
        return {"num_bytes": log.num_bytes, "num_lines": log.seq, "head": log.head}

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is to be made after this many rollout batches."""
        config, waited = self.config, time.monotonic() - self.saved_at
        by_count = config.every and step % config.every == 0
        return step == 0 or bool(by_count) or (config.minutes is not None and waited >= 60 * config.minutes)

    def stop(self, session: Session, number: signal.Signals) -> None:
        """Saves the last boundary, unless it is saved, and ends the run.

        Errors: GspoError with the exit code of the signal, always; 6 when saving failed.
        """
        self.save(session)
        if self.missed:
            raise self.storage_error()
        session.log.event("interrupted", signal=number.name, step=session.step)
        raise GspoError(
            f"interrupted by {number.name} after rollout batch {session.step}",
            f"the run is saved whole in {self.run}",
            f"gspo train --resume {self.run} goes on from there",
            CODES[number],
        )

    def save(self, session: Session) -> None:
        """One checkpoint, unless this boundary has it. A full disk is noted, and training goes on without.

        Errors: GspoError (exit code 6) after `max_missed` failures in a row; (4) for a weight that is not finite.
        """
        if self.saved == session.step:
            return
        started = time.monotonic()
        try:
            with session.clock("save_s"):
                num_bytes = self.write(session, collect(session, self.run, self.ranks))
        except (OSError, SafetensorError, Damaged) as error:
            self.missed += 1
            session.log.event("checkpoint_failed", step=session.step, reason=str(error), in_a_row=self.missed)
            self.note(f"warning: no checkpoint of step {session.step}: {error}; the earlier ones are kept")
            if self.missed >= self.config.max_missed:
                raise self.storage_error() from error
            return
        self.saved, self.missed, self.saved_at = session.step, 0, time.monotonic()
        session.log.event(
            "checkpoint", step=session.step, bytes=num_bytes, seconds=round(self.saved_at - started, 3),
            log=self.position.model_dump() if self.position else None,
        )  # fmt: skip
        if self.ranks.first:
            self.rotate()

    def rotate(self) -> None:
        """Removes the checkpoints that are not to be kept."""
        folder = self.run / "checkpoints"
        rotate(folder, self.config.keep, best_step(folder) if self.config.best else set())

    def storage_error(self) -> GspoError:
        """For saves that failed."""
        return GspoError(
            f"{self.missed} checkpoint{'s' if self.missed > 1 else ''} of {self.run} could not be saved",
            "the disk refused; events.jsonl has the reasons",
            f"free some space, then gspo train --resume {self.run} goes on from the last checkpoint",
            ExitCode.STORAGE,
        )

    def write(self, session: Session, saved: Saved) -> int:
        """Writes a checkpoint and gives its size: each rank its own files, rank 0 the rest and the checkpoint's name.

        Errors: OSError, SafetensorError or Damaged when the disk refuses, on all ranks.
        """
        ranks, folder = self.ranks, self.run / "checkpoints"
        parts = [folder / f".part-{session.step}-{rank}" for rank in range(1, ranks.size)]

        def write_own() -> None:
            if not ranks.first:
                parts[ranks.rank - 1].mkdir(parents=True, exist_ok=True)
                save_all(saved.files, parts[ranks.rank - 1])

        def write_all() -> int:
            if session.log.num_bytes:
                fs.fsync(self.run / "metrics.jsonl")
            return write(folder, session.step, self.attempt, lambda at: self.fill(session, saved, at, parts)).num_bytes

        together(ranks, write_own)
        return int(together(ranks, lambda: write_all() if ranks.first else 0)[0])

    def fill(self, session: Session, saved: Saved, folder: Path, parts: list[Path]) -> None:
        """Writes the files of a checkpoint; those in `parts` are there already and are moved."""
        assert self.position is not None
        model = session.learner.model
        model.save_pretrained(folder / "model", **({"state_dict": saved.weights} if is_sharded(model) else {}))
        session.tokenizer.save_pretrained(folder / "model")
        save_all(saved.files | {GENERATORS: self.generators}, folder)
        save_ahead(session.ahead, folder)
        for part in parts:
            for file in sorted(part.iterdir()):
                fs.rename(file, folder / file.name)
            fs.remove_tree(part)
        state = State(
            step=session.step,
            portions=session.chunks,
            ahead=len(session.ahead),
            updates=session.updates,
            totals=dict(session.totals.counts),
            guards=dict(session.guards.counts),
            widest=session.widest,
            outside=session.outside,
            score=self.score,
            log=self.position,
            weights_sha256=saved.weights_sha256,
            **self.identity,
        )
        (folder / STATE).write_text(state.model_dump_json(indent=1), encoding="utf-8")


def together(ranks: Ranks, work: Callable[[], Any]) -> list[Any]:
    """`work` of all ranks, or the refusal of a disk on all of them.

    Errors: OSError, SafetensorError or Damaged; with several ranks always OSError.
    """
    if ranks.size == 1:
        return [work()]

    def attempt() -> list[Any]:
        try:
            return [work(), None]
        except (OSError, SafetensorError, Damaged) as error:
            return [None, str(error)]

    said = ranks.everywhere(attempt)
    if refused := [why for _, why in said if why]:
        raise OSError(refused[0])
    return [found for found, _ in said]


def best_step(folder: Path) -> set[int]:
    """The step of the checkpoint with the best score, the earliest of equals; from what is on disk."""
    files = [p / STATE for p in checkpoints(folder)]
    states = [parse_state(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    scored = [(state.score, -state.step) for state in states if state.score is not None]
    return {-max(scored)[1]} if scored else set()
