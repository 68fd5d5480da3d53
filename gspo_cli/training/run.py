"""Train one run, from its start model or from a checkpoint, to its logs and final weights."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from gspo_cli.config import Recipe
from gspo_cli.distributed import ACTIVITY, SINGLE_PROCESS, Ranks, restart_reason
from gspo_cli.events import Emit, Noted
from gspo_cli.models.admission import paths_of
from gspo_cli.models.load import tokenizer_hash
from gspo_cli.moe.routers import find_routing, is_mixture
from gspo_cli.rollout.collect import problems_hash
from gspo_cli.rollout.vllm.engine import HostedEngine
from gspo_cli.runlog.checksums import write_run_checksums
from gspo_cli.runlog.folder import started_by_first_attempt
from gspo_cli.runlog.lock import Heartbeat, locked
from gspo_cli.runlog.log import RunLog, SilentLog
from gspo_cli.runlog.prune import free_ended
from gspo_cli.seeds import derive_seed
from gspo_cli.training.guards import CollapseWatch, Guards, SignalWatch
from gspo_cli.training.loop import train
from gspo_cli.training.run_folder import create_folder, record_end, reopen_folder
from gspo_cli.training.session import Session, Signals, Stopwatch
from gspo_cli.training.setup import Setup, load_setup, make_learner
from gspo_cli.training.state.checkpoints import Checkpoints, end_of
from gspo_cli.training.state.contents import restore
from gspo_cli.training.state.resume import ResumePoint, has_begun, is_complete, locked_resume_point
from gspo_cli.training.state.run_config import apply_overrides, config_hash
from gspo_cli.training.state.tensors import make_moments, seed_generators
from gspo_cli.training.step.noise import noise_of
from gspo_cli.training.study.arms import Run
from gspo_cli.training.study.checks import check_ranks
from gspo_cli.training.study.plans import StudyPlan, record_plan


def execute(
    run: Run, start: Path, study: Path, plan: StudyPlan, argv: list[str], emit: Emit, ranks: Ranks = SINGLE_PROCESS,
    overrides: dict[str, Any] | None = None, allowed: Sequence[str] = (),
) -> Path:  # fmt: skip
    """Trains a run from its beginning and returns its folder, which no process but its ranks may hold.

    `emit` takes the run's events. `overrides` change the recipe as those of `resume` do: `config.json` keeps what the
    study planned.

    If a launcher restarted this command, the run that the first try began is resumed (see `launch.local.launch`).
    """
    folder = study / run.name
    if restart_reason() and ranks.broadcast(lambda: started_by_first_attempt(folder) and has_begun(folder)):
        done = ranks.broadcast(lambda: is_complete(folder))
        return folder if done else resume(folder, lambda _: start, {}, [], argv, emit, ranks)
    planned = config_hash(run.recipe)
    recipe, changes = run.recipe, dict[str, Any]()
    if overrides:
        recipe, changes = apply_overrides(recipe.model_dump(mode="json"), {}, overrides, allowed, planned)
    setup = load_setup(recipe, start, ranks, emit)
    create = partial(create_folder, run, folder, plan.text, argv, setup, changes)
    with locked(folder) if ranks.is_main else nullcontext():
        if ranks.is_main:
            record_plan(study, plan, run.name)
        return train_locked(replace(run, recipe=recipe), setup, folder, emit, create, planned, changes)


def resume(
    folder: Path,
    start: Callable[[Recipe], Path],
    overrides: dict[str, Any],
    allowed: list[str],
    argv: list[str],
    emit: Emit,
    ranks: Ranks = SINGLE_PROCESS,
) -> Path:
    """Resumes a run from its newest checkpoint that verifies, and returns its folder.

    `start` gives the start model of a recipe; `overrides` change the recipe, in the keys that `allowed` names.
    """
    with locked_resume_point(folder, overrides, allowed, emit, ranks) as point:
        check_ranks([point.run.recipe], ranks)
        emit(Noted(f"{folder}: resuming after rollout batch {point.state.step}"))
        setup = load_setup(point.run.recipe, start(point.run.recipe), ranks, emit)
        reopen, planned = partial(reopen_folder, point, argv, emit), str(point.record["config_sha256"])
        return train_locked(point.run, setup, folder, emit, reopen, planned, point.state.changes, point)


def train_locked(
    run: Run,
    setup: Setup,
    folder: Path,
    emit: Emit,
    open_log: Callable[[dict[str, str]], RunLog],
    planned: str,
    changes: dict[str, Any],
    point: ResumePoint | None = None,
) -> Path:
    """Trains a run whose folder this process has locked, from its beginning or from a checkpoint.

    `planned` is the hash of its `config.json`, from which `run` differs by the `changes`.

    Whatever happens, the logs end with a whole line, and an event says how the run ended.
    """
    recipe, ranks, engine = run.recipe, setup.ranks, setup.engine
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
    session = make_session(run, setup, log, emit)
    if ranks.is_main:
        emit(Noted(f"model: {paths_of(setup.model).describe()}"))
        if find_routing(setup.model) is None and is_mixture(setup.model):
            name = type(setup.model).__name__
            emit(Noted(f"warning: the routers of {name} were not found: nothing under moe/ is measured"))
        if setup.num_dropped:
            text = f"{setup.num_dropped} problems are left out: too long for the model (task.too_long)"
            emit(Noted(f"warning: {text}"))
        algo = recipe.algo
        if noise_of(recipe, 0) and not run.algorithm.HAS_RATIO and algo.correction.kind == algo.replay == "none":
            emit(Noted(f"warning: {algo.name} has no importance ratio, so [noise] changes nothing that it trains on"))
    identity = {"start_sha256": hashes["model_sha256"], "config_sha256": planned, "changes": changes}
    checkpoints = Checkpoints(folder, recipe.checkpoint, log.attempt, identity, ranks)
    seed_generators(derive_seed(recipe.seed, "global"))
    started, ACTIVITY.least_limit_s = time.monotonic(), recipe.guards.hang_s
    try:
        beat = Heartbeat(folder, log.attempt, lambda: (session.step, session.clock.phase))
        with beat if log.writes else nullcontext():
            if point is not None:
                restore(session, point.checkpoint, point.state)
                checkpoints.resume_after(point.state)
            with session.signals, closing(checkpoints):
                train(session, checkpoints)
        log.event("end", status="completed", log=asdict(end_of(log)), seconds=round(time.monotonic() - started, 3))
    except BaseException as error:
        record_end(log, error, time.monotonic() - started)
        raise
    finally:
        ACTIVITY.enter("start")  # of a next run, whose model may take any time to load
        engine.close()
    if log.writes:
        write_run_checksums(folder)
        if not recipe.checkpoint.keep_optimizer:
            free_ended(folder, setup.start)
    return folder


def make_session(run: Run, setup: Setup, log: RunLog, emit: Emit) -> Session:
    """The run with its learner, what it evaluates, and what watches it."""
    recipe, learner = run.recipe, make_learner(run, setup.model, setup.ranks, setup.start)
    for optimizer in [learner.optimizer] + ([learner.critic.optimizer] if learner.critic else []):
        make_moments(optimizer)
    return Session(
        run, learner, setup.engine, setup.tokenizer, setup.task, setup.stream, log, emit, setup.benchmarks,
        watches=(SignalWatch(recipe, emit), CollapseWatch(recipe, log, emit)),
        signals=Signals(learner.ranks, emit, recipe.checkpoint.grace_s),
        guards=Guards(recipe.guards), clock=Stopwatch(emit),
    )  # fmt: skip
