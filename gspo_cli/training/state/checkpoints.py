"""When a run is saved, and how it stops on a signal."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from gspo_cli.config import CheckpointConfig
from gspo_cli.distributed import ACTIVITY, SINGLE_PROCESS, TIMEOUT_S, Ranks
from gspo_cli.errors import ExitCode, GspoError, quoted
from gspo_cli.events import Noted
from gspo_cli.models.files import INDEX
from gspo_cli.models.sharding import is_sharded
from gspo_cli.runlog import fs
from gspo_cli.runlog.log import Position, RunLog
from gspo_cli.runlog.schema import metric
from gspo_cli.training.rollout_queue import save_queue
from gspo_cli.training.session import CODES
from gspo_cli.training.state.checkpoint_folder import (
    REFUSED,
    files_in,
    list_checkpoints,
    require_room,
    rotate,
    sweep,
    write,
)
from gspo_cli.training.state.contents import GENERATORS, STATE, RunState, collect, loss_scalers, num_writers, read_state
from gspo_cli.training.state.shards import CheckpointState, Written, trained_hash, write_share
from gspo_cli.training.state.tensors import generator_tensors

if TYPE_CHECKING:
    from gspo_cli.training.session import Session


@dataclass(frozen=True)
class Pending:
    """A checkpoint that is being written."""

    step: int
    log_end: Position | None
    started: float
    written: Future[tuple[int, float]]
    """Its size, and when it was written."""


@dataclass
class Checkpoints:
    """Saves a run at the boundary between two rollout batches, where nothing is in flight."""

    run: Path
    config: CheckpointConfig
    attempt: int
    identity: dict[str, Any]
    """`start_sha256`, `config_sha256` and `changes` of the state."""
    ranks: Ranks = SINGLE_PROCESS
    log_end: Position | None = None
    """The end of the log at the last boundary; a resume repeats an evaluation after it."""
    generators: dict[str, Tensor] = field(default_factory=dict)
    """The global generators' states there; sampling that is abandoned later may draw from them."""
    saved_step: int | None = None
    saved_at: float = field(default_factory=time.monotonic)
    failed_saves: int = 0
    """In a row."""
    score: float | None = None
    """The metric `best` of the last rollout batch, negated if lower is better."""
    pending: Pending | None = None
    pool: ThreadPoolExecutor | None = None
    """With several ranks: the thread that writes,"""
    group: Any = None
    """and in which it speaks to the others'."""

    def boundary(self, session: Session, values: dict[str, float | None]) -> None:
        """Called before the first rollout batch and after each: saves if due, stops if a signal asked for it.

        Errors: GspoError on a signal (exit codes 129, 130, 143), or after too many failed saves (6).
        """
        best = self.config.best
        signalled = session.signals.agreed()
        if best is not None and (value := values.get(best)) is not None:
            self.score = -value if metric(best).better == "lower" else value
        self.log_end = end_of(session.log)
        self.generators = generator_tensors()
        last = session.step == session.run.recipe.train.steps
        self.settle(session, wait=False)
        if any(self.ranks.all_gather(lambda: self.is_due(session.step))) or last or signalled:
            self.save(session)
            if last or signalled or session.step == 0:  # a log without any checkpoint could never be resumed
                self.settle(session)
            if self.failed_saves and last:
                raise self.storage_error()
        if signalled:
            self.stop(session, signalled)

    def resume_after(self, state: RunState) -> None:
        """Continues after this state's checkpoint, and finishes a rotation that a crash interrupted. A damaged newer
        checkpoint stays until its step is saved again."""
        self.log_end, self.saved_step, self.score = state.log, state.step, state.score
        self.generators = generator_tensors()
        if self.ranks.is_main and list_checkpoints(self.run / "checkpoints")[-1].name == f"step-{state.step:06d}":
            self.rotate()

    def is_due(self, step: int) -> bool:
        """Whether to save after this many rollout batches."""
        config, waited = self.config, time.monotonic() - self.saved_at
        by_count = config.every and step % config.every == 0
        if step == 0:
            return config.start
        return bool(by_count) or (config.minutes is not None and self.pending is None and waited >= 60 * config.minutes)

    def stop(self, session: Session, number: signal.Signals) -> None:
        """Saves the last boundary, unless it is saved, and ends the run.

        Errors: GspoError with the exit code of the signal, always; 6 when saving failed.
        """
        self.save(session)
        self.settle(session)
        if self.failed_saves:
            raise self.storage_error()
        session.log.event("interrupted", signal=number.name, step=session.step)
        raise GspoError(
            f"interrupted by {number.name} after rollout batch {session.step}",
            f"the whole run is saved in {self.run}",
            f"gspo train --resume {quoted(self.run)} continues it",
            CODES[number],
        )

    def save(self, session: Session) -> None:
        """One checkpoint, unless this boundary has it; with several ranks, training continues while it is written. A
        full disk is noted, and training continues without.

        Errors: GspoError (exit code 6) after `max_missed` failures in a row; (4) for a weight that is not finite.
        """
        self.settle(session)
        if self.saved_step == session.step:
            return
        started = time.monotonic()
        try:
            with session.clock("save_s"):
                written = self.begin(session, collect(session, self.run, self.ranks))
        except REFUSED as error:
            self.missed(session, session.step, error)
            return
        self.pending = Pending(session.step, self.log_end, started, written)
        if self.ranks.size == 1:
            self.settle(session)

    def settle(self, session: Session, wait: bool = True) -> None:
        """Notes how the save ended that is being written, if there is one. `wait` = until it has ended on all ranks.

        Errors: as `save`; GspoError (exit code 5) for a lost rank.
        """
        pending, ranks = self.pending, self.ranks
        if pending is None or not (wait or all(ranks.all_gather(pending.written.done))):
            return
        self.pending = None
        try:
            with session.clock("write_s") if ranks.size > 1 else nullcontext():
                results = on_all_ranks(ranks, pending.written.result)
        except REFUSED as error:
            self.missed(session, pending.step, error)
            return
        self.saved_step, self.failed_saves, self.saved_at = pending.step, 0, time.monotonic()
        seconds = round(results[ranks.rank][1] - pending.started, 3)
        if ranks.size > 1:
            ACTIVITY.longest["write"] = max(ACTIVITY.longest.get("write", 0.0), seconds)
        session.log.event(
            "checkpoint", step=pending.step, bytes=results[0][0], seconds=seconds,
            log=asdict(pending.log_end) if pending.log_end else None,
        )  # fmt: skip
        if ranks.is_main:
            self.rotate()

    def missed(self, session: Session, step: int, error: Exception) -> None:
        """Notes a save that the disk refused. Errors: GspoError (exit code 6) after `max_missed` in a row."""
        self.failed_saves += 1
        session.log.event("checkpoint_failed", step=step, reason=str(error), in_a_row=self.failed_saves)
        session.emit(Noted(f"warning: no checkpoint of step {step}: {error}; the earlier ones are kept"))
        if self.failed_saves >= self.config.max_missed:
            raise self.storage_error() from error

    def close(self) -> None:
        """Waits until the thread has ended: a checkpoint that it is writing is whole then."""
        if self.pool is not None:
            self.pool.shutdown()

    def rotate(self) -> None:
        """Removes all checkpoints but the newest, and the one with the best score (the earliest of equals)."""
        folder, scores = self.run / "checkpoints", list[tuple[float, int]]()
        for path in list_checkpoints(folder) if self.config.best else ():
            if (path / STATE).is_file():
                state = read_state(path)
                scores += [(state.score, -state.step)] if state.score is not None else []
        rotate(folder, self.config.keep, {-max(scores)[1]} if scores else set())

    def storage_error(self) -> GspoError:
        """For saves that failed."""
        return GspoError(
            f"{self.failed_saves} checkpoint{'s' if self.failed_saves > 1 else ''} of {self.run} could not be saved",
            "the disk refused; events.jsonl has the reasons",
            f"free some space, then gspo train --resume {quoted(self.run)} continues from the last checkpoint",
            ExitCode.STORAGE,
        )

    def begin(self, session: Session, state: CheckpointState) -> Future[tuple[int, float]]:
        """Writes a checkpoint; see `Pending.written`. Of several ranks each writes its share in a thread; rank 0
        writes the small files here, and in the thread, when all have written, it gives the checkpoint its name.

        Errors: OSError, SafetensorError or Damaged when the disk refuses, on all ranks. Those of the thread, and a
        GspoError for a lost rank, come with the result.
        """
        ranks, folder = self.ranks, self.run / "checkpoints"
        force_log = partial(fs.fsync, self.run / "metrics.jsonl" if session.log.num_bytes else self.run)
        if ranks.size == 1:
            force_log()
            written, fill = Future[tuple[int, float]](), partial(self.fill, session, state)
            written.set_result((write(folder, session.step, self.attempt, fill).num_bytes, time.monotonic()))
            return written
        size = num_writers(session)
        parts = [folder / f".part-{session.step}-{rank}" for rank in range(size)]

        def prepare() -> None:
            if ranks.is_main:
                folder.mkdir(parents=True, exist_ok=True)
                sweep(folder)
                require_room(folder)
                force_log()
                parts[0].mkdir()
                self.fill(session, state, parts[0])

        try:
            on_all_ranks(ranks, prepare)
        except REFUSED:
            if ranks.is_main:
                sweep(folder)  # on a full disk, what has been written would be missing elsewhere
            raise
        if self.pool is None:
            self.pool, limit = ThreadPoolExecutor(1), timedelta(seconds=TIMEOUT_S)  # disks may differ much in speed
            self.group = dist.new_group(range(size), backend="gloo", timeout=limit)
        if ranks.rank >= size:  # its rows are those of a rank on the first machine
            return self.pool.submit(lambda: (0, time.monotonic()))
        write_own = partial(write_share, state, session.learner.model, parts[ranks.rank], self.group)
        return self.pool.submit(self.write_shares, write_own, session.step, parts)

    def write_shares(self, write_own: Callable[[], Written], step: int, parts: list[Path]) -> tuple[int, float]:
        """The work of the thread."""
        try:
            known, hashes, index = write_own()
            if not self.ranks.is_main:
                return 0, time.monotonic()

            def join(folder: Path) -> None:
                for part in parts:
                    for file in files_in(part):
                        target = folder / file.relative_to(part)
                        target.parent.mkdir(parents=True, exist_ok=True)
                        fs.rename(file, target)
                state = RunState.model_validate_json((folder / STATE).read_bytes())
                state = state.model_copy(update={"weights_sha256": trained_hash(hashes)})
                (folder / STATE).write_text(state.model_dump_json(indent=1), encoding="utf-8")
                if index:
                    size = sum(entry["bytes"] for name, entry in known.items() if name.startswith("model/"))
                    table = {"metadata": {"total_size": size}, "weight_map": index}
                    (folder / "model" / INDEX).write_text(json.dumps(table, indent=1, sort_keys=True), encoding="utf-8")

            return write(self.run / "checkpoints", step, self.attempt, join, known).num_bytes, time.monotonic()
        finally:
            if self.ranks.is_main:
                sweep(self.run / "checkpoints", (".part-*",))

    def fill(self, session: Session, checkpoint_state: CheckpointState, folder: Path) -> None:
        """Writes the files of a checkpoint; with several ranks all but what their threads write."""
        assert self.log_end is not None
        model = session.learner.model
        weights = {"state_dict": checkpoint_state.weights} if is_sharded(model) else {}
        model.save_pretrained(folder / "model", **weights)
        session.tokenizer.save_pretrained(folder / "model")
        files = checkpoint_state.files if self.ranks.size == 1 else {}
        for name, tensors in (files | {GENERATORS: self.generators}).items():
            save_file(tensors, folder / name)
        save_queue(session.rollout_queue, folder)
        state = RunState(
            step=session.step,
            portions=session.prompt_batches,
            ahead=len(session.rollout_queue),
            updates=session.updates,
            totals=dict(session.totals),
            guards=dict(session.guards.counts),
            norms=list(session.guards.norms),
            widest=session.max_ratio_deviation,
            outside=session.left_clip_range,
            loss_scales={name: scaler.state_dict() for name, scaler in loss_scalers(session.learner).items()},
            score=self.score,
            log=self.log_end,
            weights_sha256=checkpoint_state.weights_sha256,
            **self.identity,
        )
        (folder / STATE).write_text(state.model_dump_json(indent=1), encoding="utf-8")


def end_of(log: RunLog) -> Position:
    """The present end of the log. The last event of a run holds it too: the chain alone would not show that the file
    was cut."""
    return Position(num_bytes=log.num_bytes, num_lines=log.seq, head=log.head)


def on_all_ranks(ranks: Ranks, work: Callable[[], Any]) -> list[Any]:
    """Does `work` on all ranks; a disk that refuses it on one rank is an error on all.

    Errors: OSError, SafetensorError or Damaged; with several ranks always OSError.
    """
    if ranks.size == 1:
        return [work()]

    def attempt() -> list[Any]:
        try:
            return [work(), None]
        except REFUSED as error:
            return [None, str(error)]

    results = ranks.all_gather(attempt)
    if refusals := [why for _, why in results if why]:
        raise OSError(refusals[0])
    return [result for result, _ in results]
