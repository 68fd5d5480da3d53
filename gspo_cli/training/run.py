"""One run from its start model to its logs and final weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_cli.attempt import why_again
from gspo_cli.checkpoint.tensors import seed_generators
from gspo_cli.config import Recipe
from gspo_cli.evals.during_training import measure_all
from gspo_cli.evals.subject import Subject
from gspo_cli.models.load import tokenizer_hash
from gspo_cli.ranks import ALONE, Ranks
from gspo_cli.rollout.collect import problems_hash
from gspo_cli.rollout.hosted_engine import HostedEngine
from gspo_cli.runlog.folder import begun_before
from gspo_cli.runlog.heartbeat import Heartbeat
from gspo_cli.runlog.lock import locked
from gspo_cli.runlog.log import RunLog, SilentLog
from gspo_cli.runlog.seal import seal_run
from gspo_cli.seeds import derive_seed
from gspo_cli.training.changes import config_hash
from gspo_cli.training.checkpoints import Checkpoints
from gspo_cli.training.checks import check_ranks
from gspo_cli.training.collapse_watch import CollapseWatch
from gspo_cli.training.guards import Guards
from gspo_cli.training.loop import Hooks, Session, train
from gspo_cli.training.parts import Parts, load_parts, make_learner
from gspo_cli.training.plans import Plan, record_plan
from gspo_cli.training.resume import Earlier, has_begun, is_complete, reopened
from gspo_cli.training.run_folder import open_folder, record_end, reopen_folder, rollout_metadata, store_rollout
from gspo_cli.training.saved import restore
from gspo_cli.training.signals import Signals
from gspo_cli.training.study import Run


@dataclass(frozen=True)
class View:
    """Where a run shows what it does."""

    on_step: Callable[[int, dict[str, float | None]], None]
    on_preflight: Callable[[dict[str, float], list[str]], None]
    note: Callable[[str], None]
    """A line for the reader: resumes, refused checkpoints, failed saves."""


def execute(run: Run, start: Path, study: Path, plan: Plan, argv: list[str], view: View, ranks: Ranks = ALONE) -> Path:
    """Trains one run from its beginning and returns its folder, which no other process may hold but its ranks.

    What the command's own first try has begun goes on instead (see `launch.torchrun`).
    """
    folder = study / run.name
    if why_again() and ranks.from_first(lambda: begun_before(folder) and has_begun(folder)):
        done = ranks.from_first(lambda: is_complete(folder))
        return folder if done else resume(folder, lambda _: start, {}, [], argv, view, ranks)
    parts = load_parts(run.recipe, start, ranks)
    with locked(study / run.name) if ranks.first else nullcontext():
        if ranks.first:
            record_plan(study, plan)
        return train_held(run, parts, study / run.name, view, lambda h: open_folder(run, study / run.name, start,
                          plan.text, argv, h | {"engine": parts.engine.info.as_dict()}, parts.model))  # fmt: skip


def resume(folder: Path, start: Callable[[Recipe], Path], overrides: dict[str, Any], allowed: list[str],
           argv: list[str], view: View, ranks: Ranks = ALONE) -> Path:  # fmt: skip
    """Goes on with a run from its newest whole checkpoint and returns its folder.

    `start` gives the start model of a recipe; `overrides` are changes to the recipe, `allowed` the keys that they may
    change.
    """
    with reopened(folder, overrides, allowed, view.note, ranks) as earlier:
        check_ranks([earlier.run], ranks)
        view.note(f"{folder}: going on after rollout batch {earlier.state.step}")
        parts = load_parts(earlier.run.recipe, start(earlier.run.recipe), ranks)
        return train_held(
            earlier.run, parts, folder, view, lambda hashes: reopen_folder(earlier, hashes, argv, view.note), earlier
        )


def train_held(
    run: Run,
    parts: Parts,
    folder: Path,
    view: View,
    open_log: Callable[[dict[str, str]], RunLog],
    earlier: Earlier | None = None,
) -> Path:
    """Trains one run whose folder this process holds, from its beginning or from an earlier attempt's checkpoint.

    Whatever happens, the logs end with a whole line, and an event says how the run ended.
    """
    recipe, model, tokenizer, engine = run.recipe, parts.model, parts.tokenizer, parts.engine
    hashes = {
        "model_sha256": parts.start_sha256,
        "tokenizer_sha256": tokenizer_hash(tokenizer),
        "data_sha256": problems_hash(parts.stream.problems),
    }
    log = open_log(hashes) if parts.shared.ranks.first else SilentLog(folder, "")
    if why := why_again():
        log.event("launched_again", reason=why)
    parts.shared.ranks.wait()  # the first rank may have cut logs that the others read
    if isinstance(engine, HostedEngine):
        engine.on_restart = lambda reason: log.event("engine_restarted", reason=reason)
    learner, ranks = make_learner(run, model, parts.shared), parts.shared.ranks
    hooks = Hooks(
        evaluate=lambda: measure_all(
            parts.benchmarks, recipe.eval, Subject(engine, model, tokenizer, recipe.name), recipe.seed, ranks
        ),
        store=lambda batch: store_rollout(batch, rollout_metadata(model, tokenizer, recipe), log),
        on_step=watched(view, CollapseWatch(recipe, log, lambda text: view.on_preflight({}, [text]))),
        on_preflight=view.on_preflight,
    )
    guards = Guards(recipe.guards)
    session = Session(run, learner, engine, tokenizer, parts.task, parts.stream, log, hooks, Signals(ranks), guards)
    identity = {
        "start_sha256": hashes["model_sha256"],
        "config_sha256": earlier.record["config_sha256"] if earlier else config_hash(recipe),
        "changes": earlier.state.changes if earlier else {},
    }
    checkpoints = Checkpoints(folder, recipe.checkpoint, log.attempt, identity, view.note, ranks)
    seed_generators(derive_seed(recipe.seed, "global"))
    started = time.monotonic()
    try:
        beat = Heartbeat(folder, log.attempt, lambda: (session.step, session.clock.phase))
        with beat if log.writes else nullcontext():
            if earlier is not None:
                restore(session, earlier.checkpoint, earlier.state)
                checkpoints.go_on(earlier.state)
            with session.signals:
                train(session, checkpoints)
        log.event("end", status="completed", log=checkpoints.end(session), seconds=round(time.monotonic() - started, 3))
    except BaseException as error:
        record_end(log, error, time.monotonic() - started)
        raise
    finally:
        engine.close()
    if log.writes:
        seal_run(folder)
    return folder


def watched(view: View, watch: CollapseWatch) -> Callable[[int, dict[str, float | None]], None]:
    """Shows each rollout batch, and watches it for collapse."""

    def on_step(step: int, values: dict[str, float | None]) -> None:
        view.on_step(step, values)
        watch.see(step, values)

    return on_step
