"""Train one run, from its start model or from a checkpoint, to its logs and final weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gspo_cli.config import Recipe
from gspo_cli.distributed import SINGLE_PROCESS, Ranks, restart_reason
from gspo_cli.evals.command import measure_all
from gspo_cli.evals.settings import Subject
from gspo_cli.models.admission import paths_of
from gspo_cli.models.load import tokenizer_hash
from gspo_cli.moe.routers import find_routing, is_mixture
from gspo_cli.rollout.collect import problems_hash
from gspo_cli.rollout.engine import Progress
from gspo_cli.rollout.vllm.engine import HostedEngine
from gspo_cli.runlog.checksums import write_run_checksums
from gspo_cli.runlog.folder import started_by_first_attempt
from gspo_cli.runlog.lock import Heartbeat, locked
from gspo_cli.runlog.log import RunLog, SilentLog
from gspo_cli.seeds import derive_seed
from gspo_cli.training.guards import CollapseWatch, Guards, SignalWatch
from gspo_cli.training.loop import train
from gspo_cli.training.run_folder import create_folder, record_end, reopen_folder, store_if_due
from gspo_cli.training.session import Hooks, Session, Signals
from gspo_cli.training.setup import Setup, load_setup, make_learner
from gspo_cli.training.state.checkpoints import Checkpoints, end_of
from gspo_cli.training.state.contents import restore
from gspo_cli.training.state.resume import ResumePoint, has_begun, is_complete, locked_resume_point
from gspo_cli.training.state.run_config import apply_overrides, config_hash
from gspo_cli.training.state.tensors import seed_generators
from gspo_cli.training.study.arms import Run
from gspo_cli.training.study.checks import check_ranks
from gspo_cli.training.study.plans import StudyPlan, record_plan
from gspo_cli.types import RolloutBatch, StepMetrics


@dataclass(frozen=True)
class View:
    """Where a run shows what it does."""

    on_step: Callable[[int, dict[str, float | None]], None]
    on_preflight: Callable[[dict[str, float], list[str]], None]
    note: Callable[[str], None]
    """Shows one line: a resume, a refused checkpoint, a failed save."""
    on_batch: Callable[[RolloutBatch], None] = lambda _: None
    """Shows some of a scored batch's responses."""
    on_phase: Callable[[str], None] = lambda _: None
    """Shows what the run does now: `rollout`, `score`, `update`, ..."""
    on_sampling: Progress = lambda _: None
    """Shows how far the sampling of a batch is."""
    on_signal: Callable[[], None] = lambda: None
    """Says that a signal was received; called within its handler."""


def execute(
    run: Run, start: Path, study: Path, plan: StudyPlan, argv: list[str], view: View, ranks: Ranks = SINGLE_PROCESS,
    overrides: dict[str, Any] | None = None, allowed: Sequence[str] = (),
) -> Path:  # fmt: skip
    """Trains a run from its beginning and returns its folder, which no process but its ranks may hold.

    `overrides` change the recipe as those of `resume` do: `config.json` keeps what the study planned.

    If a launcher restarted this command, the run that the first try began is resumed (see `launch.local.launch`).
    """
    folder = study / run.name
    if restart_reason() and ranks.broadcast(lambda: started_by_first_attempt(folder) and has_begun(folder)):
        done = ranks.broadcast(lambda: is_complete(folder))
        return folder if done else resume(folder, lambda _: start, {}, [], argv, view, ranks)
    planned = config_hash(run.recipe)
    recipe, changes = run.recipe, dict[str, Any]()
    if overrides:
        recipe, changes = apply_overrides(recipe.model_dump(mode="json"), {}, overrides, allowed, planned)
    setup = load_setup(recipe, start, ranks, view.on_sampling)
    create = partial(create_folder, run, folder, start, plan.text, argv, setup)
    with locked(folder) if ranks.is_main else nullcontext():
        if ranks.is_main:
            record_plan(study, plan, run.name)
        return train_locked(replace(run, recipe=recipe), setup, folder, view, create, planned, changes)


def resume(
    folder: Path,
    start: Callable[[Recipe], Path],
    overrides: dict[str, Any],
    allowed: list[str],
    argv: list[str],
    view: View,
    ranks: Ranks = SINGLE_PROCESS,
) -> Path:
    """Resumes a run from its newest checkpoint that verifies, and returns its folder.

    `start` gives the start model of a recipe; `overrides` change the recipe, in the keys that `allowed` names.
    """
    with locked_resume_point(folder, overrides, allowed, view.note, ranks) as point:
        check_ranks([point.run.recipe], ranks)
        view.note(f"{folder}: resuming after rollout batch {point.state.step}")
        setup = load_setup(point.run.recipe, start(point.run.recipe), ranks, view.on_sampling)
        return train_locked(point.run, setup, folder, view, partial(reopen_folder, point, argv, view.note),
                            str(point.record["config_sha256"]), point.state.changes, point)  # fmt: skip


def train_locked(
    run: Run,
    setup: Setup,
    folder: Path,
    view: View,
    open_log: Callable[[dict[str, str]], RunLog],
    planned: str,
    changes: dict[str, Any],
    point: ResumePoint | None = None,
) -> Path:
    """Trains a run whose folder this process has locked, from its beginning or from a checkpoint.

    `planned` is the hash of its `config.json`, from which `run` differs by the `changes`.

    Whatever happens, the logs end with a whole line, and an event says how the run ended.
    """
    recipe, ranks, engine = run.recipe, setup.sharded.ranks, setup.engine
    hashes = {
        "model_sha256": setup.start_sha256,
        "tokenizer_sha256": tokenizer_hash(setup.tokenizer),
        "data_sha256": problems_hash(setup.stream.problems),
    }
    log = open_log(hashes) if ranks.is_main else SilentLog(folder, "")
    if why := restart_reason():
        log.event("launched_again", reason=why)
    ranks.barrier()  # rank 0 may have cut logs that the others read
    if isinstance(engine, HostedEngine):
        engine.on_restart = lambda reason: log.event("engine_restarted", reason=reason)
    session = make_session(run, setup, log, view)
    if ranks.is_main:
        view.note(f"model: {paths_of(setup.model).describe()}")
        if find_routing(setup.model) is None and is_mixture(setup.model):
            name = type(setup.model).__name__
            view.note(f"warning: the routers of {name} were not found: nothing under moe/ is measured")
        if setup.num_dropped:
            view.note(f"warning: {setup.num_dropped} problems are left out: too long for the model (task.too_long)")
    identity = {"start_sha256": hashes["model_sha256"], "config_sha256": planned, "changes": changes}
    checkpoints = Checkpoints(folder, recipe.checkpoint, log.attempt, identity, view.note, ranks)
    seed_generators(derive_seed(recipe.seed, "global"))
    started = time.monotonic()
    try:
        beat = Heartbeat(folder, log.attempt, lambda: (session.step, session.clock.phase))
        with beat if log.writes else nullcontext():
            if point is not None:
                restore(session, point.checkpoint, point.state)
                checkpoints.resume_after(point.state)
            with session.signals:
                train(session, checkpoints)
        log.event("end", status="completed", log=asdict(end_of(log)), seconds=round(time.monotonic() - started, 3))
    except BaseException as error:
        record_end(log, error, time.monotonic() - started)
        raise
    finally:
        engine.close()
    if log.writes:
        write_run_checksums(folder)
    return folder


def make_session(run: Run, setup: Setup, log: RunLog, view: View) -> Session:
    """The run with its learner, and the hooks that evaluate, store, show and watch it."""
    recipe, ranks = run.recipe, setup.sharded.ranks
    model, tokenizer, engine = setup.model, setup.tokenizer, setup.engine
    learner = make_learner(run, model, setup.sharded)
    signal = SignalWatch(recipe, lambda text: view.on_preflight({}, [text]))
    collapse = CollapseWatch(recipe, log, lambda text: view.on_preflight({}, [text]))

    def on_step(step: int, values: dict[str, float | None]) -> None:
        view.on_step(step, values)
        signal.observe(step, values)
        collapse.observe(step, values)

    def on_sampled(batch: RolloutBatch) -> None:
        store_if_due(batch, setup, recipe, log)
        view.on_batch(batch)

    def evaluate() -> StepMetrics:
        subject = Subject(engine, model, tokenizer, recipe.name, recipe.task)
        return measure_all(setup.benchmarks, recipe.eval, subject, recipe.seed, ranks)

    hooks, guards = Hooks(evaluate, on_sampled, on_step, view.on_preflight), Guards(recipe.guards)
    session = Session(run, learner, engine, tokenizer, setup.task, setup.stream, log, hooks, Signals(ranks), guards)
    session.clock.on_phase = view.on_phase
    session.signals.on_receive = view.on_signal
    return session
