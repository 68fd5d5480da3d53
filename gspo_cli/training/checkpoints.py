"""When a run is saved, what is saved, and how it stops on a signal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gspo_cli.checkpoint.manifest import Damaged
from gspo_cli.checkpoint.protocol import checkpoints, rotate, write
from gspo_cli.checkpoint.state import LogPosition, State, parse_state
from gspo_cli.checkpoint.tensors import (
    first_nonfinite,
    generator_tensors,
    optimizer_tensors,
    restore_generators,
    restore_optimizer,
    restore_parameters,
)  # fmt: skip
from gspo_cli.config import CheckpointConfig
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.load import load_policy, weights_hash
from gspo_cli.runlog import fs
from gspo_cli.runlog.schema import metric
from gspo_cli.training.signals import CODES

if TYPE_CHECKING:
    from gspo_cli.training.loop import Session

STATE, OPTIMIZER, CRITIC, GENERATORS = "state.json", "optimizer.safetensors", "critic.safetensors", "rng.safetensors"


@dataclass
class Checkpoints:
    """Saves a run at the boundary between two rollout batches, where nothing is in flight."""

    run: Path
    config: CheckpointConfig
    attempt: int
    identity: dict[str, Any]
    """`start_sha256`, `config_sha256` and `changes` of the state."""
    note: Callable[[str], None]
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
        if best is not None and (value := values.get(best)) is not None:
            self.score = -value if metric(best).better == "lower" else value
        self.position = LogPosition(num_bytes=log.num_bytes, num_lines=log.seq, head=log.head)
        self.generators = generator_tensors()
        last = session.step == session.run.recipe.train.steps
        if self.is_due(session.step) or last or session.signals.received:
            self.save(session)
            if self.missed and last:
                raise self.storage_error()
        if session.signals.received:
            self.stop(session)

    def go_on(self, state: State) -> None:
        """Continues after this state's checkpoint, and with the rotation that a crash may have prevented; a damaged
        newer one is left until its step is saved again."""
        self.position, self.saved, self.score = state.log, state.step, state.score
        self.generators = generator_tensors()
        if checkpoints(self.run / "checkpoints")[-1].name == f"step-{state.step:06d}":
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

    def stop(self, session: Session) -> None:
        """Saves the last boundary, unless it is saved, and ends the run.

        Errors: GspoError with the exit code of the signal, always; 6 when saving failed.
        """
        number = session.signals.received
        assert number is not None
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
        folder, started = self.run / "checkpoints", time.monotonic()
        try:
            if session.log.num_bytes:
                fs.fsync(self.run / "metrics.jsonl")
            with session.clock("save_s"):
                manifest = write(folder, session.step, self.attempt, lambda at: self.fill(session, at))
        except (OSError, SafetensorError, Damaged) as error:
            self.missed += 1
            session.log.event("checkpoint_failed", step=session.step, reason=str(error), in_a_row=self.missed)
            self.note(f"warning: no checkpoint of step {session.step}: {error}; the earlier ones are kept")
            if self.missed >= self.config.max_missed:
                raise self.storage_error() from error
            return
        self.saved, self.missed, self.saved_at = session.step, 0, time.monotonic()
        session.log.event(
            "checkpoint", step=session.step, bytes=manifest.num_bytes, seconds=round(self.saved_at - started, 3),
            log=self.position.model_dump() if self.position else None,
        )  # fmt: skip
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

    def fill(self, session: Session, folder: Path) -> None:
        """Writes the files of a checkpoint.

        Errors: GspoError (exit code 4) for a weight or moment that is not finite; such a state is never saved.
        """
        assert self.position is not None
        learner = session.learner
        files = {OPTIMIZER: optimizer_tensors(learner.optimizer, learner.model.named_parameters())}
        if learner.critic is not None:
            files[CRITIC] = learner.critic.tensors()
        everything: dict[str, Tensor] = dict(learner.model.named_parameters())
        for tensors in files.values():
            everything |= tensors
        if bad := first_nonfinite(everything):
            raise GspoError(
                f"{bad} is not finite after rollout batch {session.step}",
                "a state like that is never saved",
                f"gspo train --resume {self.run} goes back to the last checkpoint, with another recipe if need be",
                ExitCode.GUARD,
            )
        learner.model.save_pretrained(folder / "model")
        session.tokenizer.save_pretrained(folder / "model")
        for name, tensors in (files | {GENERATORS: self.generators}).items():
            save_file(tensors, folder / name)
        state = State(
            step=session.step,
            portions=session.chunks,
            updates=session.updates,
            totals=dict(session.totals.counts),
            guards=dict(session.guards.counts),
            widest=session.widest,
            outside=session.outside,
            score=self.score,
            log=self.position,
            weights_sha256=weights_hash(learner.model),
            **self.identity,
        )
        (folder / STATE).write_text(state.model_dump_json(indent=1), encoding="utf-8")


def best_step(folder: Path) -> set[int]:
    """The step of the checkpoint with the best score, the earliest of equals; from what is on disk."""
    files = [p / STATE for p in checkpoints(folder)]
    states = [parse_state(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    scored = [(state.score, -state.step) for state in states if state.score is not None]
    return {-max(scored)[1]} if scored else set()


def restore(session: Session, folder: Path, state: State) -> None:
    """Puts a run into the state of a verified checkpoint; its start model has been loaded and compared before.

    Errors: GspoError (exit code 6) for a file that is missing or does not fit: never a fresh default instead.
    """
    learner = session.learner
    try:
        load_weights(session, folder / "model", state)
        restore_optimizer(learner.optimizer, learner.model.named_parameters(), load_file(folder / OPTIMIZER))
        if learner.critic is not None:
            learner.critic.restore(load_file(folder / CRITIC))
        restore_generators(load_file(folder / GENERATORS))
    except (OSError, KeyError, ValueError) as error:
        raise GspoError(
            f"{folder} does not fit this run", str(error), "resume with the version that wrote it", ExitCode.STORAGE
        ) from error
    session.step, session.chunks, session.updates = state.step, state.portions, state.updates
    session.totals.counts.update(state.totals)
    session.guards.counts.update(state.guards)
    session.widest, session.outside = state.widest, state.outside
    session.engine.sync(learner.model, version=state.step)


def load_weights(session: Session, folder: Path, state: State) -> None:
    """Copies the saved weights into the model, in place, so that engine and optimizer keep their hold of it.

    Errors: ValueError unless the model then has the very weights that were saved.
    """
    model, config = session.learner.model, session.run.recipe.model
    loaded, _ = load_policy(config.model_copy(update={"device": "cpu", "revision": None}), folder)
    restore_parameters(model.named_parameters(), dict(loaded.named_parameters()))
    if (found := weights_hash(model)) != state.weights_sha256:
        raise ValueError(f"the loaded weights have sha256 {found[:12]}, the saved ones {state.weights_sha256[:12]}")
