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
from transformers import PreTrainedModel

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
from gspo_cli.models.sharding import copy_from_first, is_sharded, whole
from gspo_cli.ranks import ALONE, Ranks
from gspo_cli.runlog import fs
from gspo_cli.runlog.schema import metric
from gspo_cli.training.ahead import load_ahead, save_ahead
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
        session.signals.agree()
        if best is not None and (value := values.get(best)) is not None:
            self.score = -value if metric(best).better == "lower" else value
        self.position = LogPosition(num_bytes=log.num_bytes, num_lines=log.seq, head=log.head)
        self.generators = generator_tensors()
        last = session.step == session.run.recipe.train.steps
        if any(self.ranks.everywhere(lambda: self.is_due(session.step))) or last or session.signals.received:
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
        started = time.monotonic()
        try:
            with session.clock("save_s"):
                num_bytes = self.write(session, self.collect(session))
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

    def collect(self, session: Session) -> Saved:
        """What this rank writes: of a divided model rank 0 takes the weights, each its share of the moments.

        Errors: GspoError (exit code 4) for a weight or moment that is not finite; such a state is never saved.
        """
        learner, ranks = session.learner, self.ranks
        weights = whole_weights(learner.model, ranks)
        files = {optimizer_file(ranks): optimizer_tensors(learner.optimizer, learner.model.named_parameters(), ranks)}
        if learner.critic is not None:
            files[CRITIC] = learner.critic.tensors()
        everything: dict[str, Tensor] = dict(weights)
        for tensors in files.values():
            everything |= tensors

        def refuse_nonfinite() -> None:
            if bad := first_nonfinite(everything):
                raise GspoError(
                    f"{bad} is not finite after rollout batch {session.step}",
                    "a state like that is never saved",
                    f"gspo train --resume {self.run} goes back to the last checkpoint, with another recipe if need be",
                    ExitCode.GUARD,
                )

        ranks.everywhere(refuse_nonfinite)
        return Saved(weights, files, weights_hash(learner.model))

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


@dataclass(frozen=True)
class Saved:
    """What goes into a checkpoint, as far as it lies in the memory of this rank."""

    weights: dict[str, Tensor]
    """Whole; empty on all ranks but the first."""
    files: dict[str, dict[str, Tensor]]
    weights_sha256: str


def whole_weights(model: PreTrainedModel, ranks: Ranks) -> dict[str, Tensor]:
    """The weights by name, those of a divided model gathered into the memory of rank 0's host."""
    if not is_sharded(model):
        return {name: p.detach() for name, p in model.named_parameters()}
    gathered = ((name, whole(p.detach())) for name, p in model.named_parameters())
    return {name: rows.cpu() for name, rows in gathered if ranks.first}


def optimizer_file(ranks: Ranks) -> str:
    """Where this rank's share of the moments goes."""
    return OPTIMIZER if ranks.size == 1 else f"optimizer-{ranks.rank + 1:05d}-of-{ranks.size:05d}.safetensors"


def load_optimizer(folder: Path) -> dict[str, Tensor]:
    """All moments, whichever number of ranks saved them.

    Errors: OSError when there are none.
    """
    files = sorted(folder.glob("optimizer*.safetensors")) or [folder / OPTIMIZER]
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def save_all(files: dict[str, dict[str, Tensor]], folder: Path) -> None:
    """Each as a safetensors file."""
    for name, tensors in files.items():
        save_file(tensors, folder / name)


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


def restore(session: Session, folder: Path, state: State) -> None:
    """Puts a run into the state of a verified checkpoint; its start model has been loaded and compared before.

    Errors: GspoError (exit code 6) for a file that is missing or does not fit: never a fresh default instead.
    """
    learner = session.learner
    try:
        load_weights(session, folder / "model", state)
        restore_optimizer(learner.optimizer, learner.model.named_parameters(), load_optimizer(folder))
        if learner.critic is not None:
            learner.critic.restore(load_file(folder / CRITIC))
        restore_generators(load_file(folder / GENERATORS))
        session.ahead.extend(load_ahead(folder, state))
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
    config, ranks = config.model_copy(update={"device": "cpu", "revision": None}), session.learner.ranks
    loaded = load_policy(config, folder)[0] if ranks.first else None
    if is_sharded(model):
        copy_from_first(loaded, model)
    elif loaded is not None:
        restore_parameters(model.named_parameters(), dict(loaded.named_parameters()))
    if (found := weights_hash(model)) != state.weights_sha256:
        raise ValueError(f"the loaded weights have sha256 {found[:12]}, the saved ones {state.weights_sha256[:12]}")
