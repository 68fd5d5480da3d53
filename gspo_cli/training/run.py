"""One run from its start model to its logs and final weights."""

from __future__ import annotations

import copy
import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_cli.checkpoint.tensors import seed_generators
from gspo_cli.config import Recipe
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.evals.during_training import BenchmarkSet, load_benchmarks, measure_all
from gspo_cli.evals.subject import Subject
from gspo_cli.models.divided import load_divided, replica
from gspo_cli.models.foreign_code import allowed_code
from gspo_cli.models.load import load_policy, tokenizer_hash, weights_hash
from gspo_cli.models.lora import add_lora
from gspo_cli.models.recompute import enable_recompute
from gspo_cli.models.torch_setup import determinism
from gspo_cli.moe.gating import Gating
from gspo_cli.moe.routers import find_routing, replayable
from gspo_cli.plugins import is_plugin, plugin_source
from gspo_cli.ranks import ALONE, Ranks
from gspo_cli.rollout.collect import PromptStream, problems_hash
from gspo_cli.rollout.engine import Engine
from gspo_cli.rollout.engines import open_engine
from gspo_cli.rollout.hosted_engine import HostedEngine
from gspo_cli.rollout.shared import SharedEngine, SharedTask
from gspo_cli.rollout.store import write_rollout
from gspo_cli.runlog import fs
from gspo_cli.runlog.folder import fresh
from gspo_cli.runlog.heartbeat import Heartbeat
from gspo_cli.runlog.lock import locked
from gspo_cli.runlog.log import RunLog, SilentLog
from gspo_cli.runlog.provenance import code_diff, provenance
from gspo_cli.runlog.seal import seal_run, sha256_of
from gspo_cli.seeds import derive_seed
from gspo_cli.tasks import make_task
from gspo_cli.tasks.contract import Task
from gspo_cli.training.changes import config_hash, config_table
from gspo_cli.training.checkpoints import Checkpoints
from gspo_cli.training.collapse_watch import CollapseWatch
from gspo_cli.training.critic import Critic
from gspo_cli.training.guards import Guards
from gspo_cli.training.loop import Hooks, Session, train
from gspo_cli.training.plans import Plan, record_plan
from gspo_cli.training.resume import Earlier, compare_machine, continue_log, reopened, start_event
from gspo_cli.training.saved import restore
from gspo_cli.training.signals import CODES, Signals
from gspo_cli.training.study import Run
from gspo_cli.training.update import Learner
from gspo_cli.types import RolloutBatch


@dataclass(frozen=True)
class View:
    """Where a run shows what it does."""

    on_step: Callable[[int, dict[str, float | None]], None]
    on_preflight: Callable[[dict[str, float], list[str]], None]
    note: Callable[[str], None]
    """A line for the reader: resumes, refused checkpoints, failed saves."""


@dataclass(frozen=True)
class Shared:
    """What a learner on several ranks cannot make from its divided model."""

    ranks: Ranks = ALONE
    reference: PreTrainedModel | None = None
    """The start model, divided too, where the KL penalty needs one."""
    rule: Gating | None = None
    """How the routers' logits become gate weights, where Routing Replay needs it."""


@dataclass(frozen=True)
class Parts:
    """What a run is made of, loaded before its folder is touched."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    task: Task
    stream: PromptStream
    benchmarks: BenchmarkSet
    engine: Engine
    start_sha256: str
    """Of the weights as loaded."""
    shared: Shared = Shared()


def load_parts(recipe: Recipe, start: Path, ranks: Ranks = ALONE) -> Parts:
    """Start model, task and engine.

    Errors: GspoError for what cannot be loaded.
    """
    if ranks.size > 1:
        return load_shared_parts(recipe, start, ranks)
    model, tokenizer = load_policy(recipe.model, start)
    if recipe.model.compute not in (None, recipe.model.dtype):
        raise GspoError(
            f"model.compute = {recipe.model.compute!r} with parameters in {recipe.model.dtype}",
            "one process computes in the precision of its parameters; others belong to weights divided over ranks",
            "--set model.compute=" + recipe.model.dtype,
        )
    if recipe.train.recompute:
        enable_recompute(model)
    task = make_task(recipe.task)
    stream = PromptStream(task.problems(recipe.task.split), recipe.rollout.prompts, recipe.seed)
    benchmarks = load_benchmarks(recipe.eval)
    start_sha256 = weights_hash(model)
    if recipe.model.lora is not None:
        add_lora(model, recipe.model.lora, start, recipe.model.revision, derive_seed(recipe.seed, "lora"))
    engine = open_engine(recipe.rollout, model, tokenizer, recipe.records_routes)
    return Parts(model, tokenizer, task, stream, benchmarks, engine, start_sha256)


def load_shared_parts(recipe: Recipe, start: Path, ranks: Ranks) -> Parts:
    """The same with weights divided over the ranks, and a whole copy of them on each to sample from.

    Errors: GspoError for what cannot be loaded.
    """
    model, tokenizer, start_sha256 = load_divided(recipe.model, start, ranks)
    if recipe.train.recompute:
        enable_recompute(model)
    task = make_task(recipe.task)
    stream = PromptStream(task.problems(recipe.task.split), recipe.rollout.prompts, recipe.seed)
    benchmarks = load_benchmarks(recipe.eval)
    whole = replica(recipe.model, start, model)
    engine = open_engine(recipe.rollout, whole, tokenizer, recipe.records_routes)
    reference = rule = None
    if recipe.algo.kl.coef > 0:
        reference = load_divided(recipe.model, start, ranks).model.requires_grad_(False)
    if recipe.algo.replay != "none":
        rule = replayable(whole, f"algo.replay = {recipe.algo.replay!r}").rule
    return Parts(
        model, tokenizer, SharedTask(task, ranks), stream, benchmarks, SharedEngine(engine, ranks), start_sha256,
        Shared(ranks, reference, rule),
    )  # fmt: skip


def execute(run: Run, start: Path, study: Path, plan: Plan, argv: list[str], view: View, ranks: Ranks = ALONE) -> Path:
    """Trains one run from its beginning and returns its folder, which no other process may hold but its ranks."""
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
        view.note(f"{folder}: going on after rollout batch {earlier.state.step}")
        parts = load_parts(earlier.run.recipe, start(earlier.run.recipe), ranks)
        return train_held(
            earlier.run, parts, folder, view, lambda hashes: reopen_folder(earlier, hashes, argv, view), earlier
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
    parts.shared.ranks.wait()  # the first rank may have cut logs that the others read
    if isinstance(engine, HostedEngine):
        engine.on_restart = lambda reason: log.event("engine_restarted", reason=reason)
    learner, ranks = make_learner(run, model, parts.shared), parts.shared.ranks
    hooks = Hooks(
        evaluate=lambda: measure_all(
            parts.benchmarks, recipe.eval, Subject(engine, model, tokenizer, recipe.name), recipe.seed
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


def store_rollout(batch: RolloutBatch, metadata: dict[str, str], log: RunLog) -> None:
    """Stores a scored batch, and its hash as an event."""
    if not log.writes:
        return
    name = f"rollouts/step_{batch.step:06d}.parquet"
    write_rollout(batch, log.folder / name, metadata)
    log.event("rollout_stored", step=batch.step, file=name, sha256=sha256_of(log.folder / name))


def rollout_metadata(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, recipe: Recipe) -> dict[str, str]:
    """What a stored batch must be read with: the policy that sampled it, by the hash of its weights as they are."""
    return {
        "model_sha256": weights_hash(model),
        "tokenizer_sha256": tokenizer_hash(tokenizer),
        "temperature": str(recipe.rollout.temperature),
        "max_new_tokens": str(recipe.rollout.max_new_tokens),
    }


def open_folder(
    run: Run,
    folder: Path,
    start: Path,
    recipe_text: str,
    argv: list[str],
    found: dict[str, Any],
    model: PreTrainedModel,
) -> RunLog:
    """Creates the run folder with its provenance, and its log."""
    recipe = run.recipe
    fresh(folder)
    fs.write_text(folder / "recipe.toml", recipe_text)
    fs.write_text(folder / "config.json", json.dumps(config_table(recipe), indent=1))
    fs.write_text(folder / "code.diff", code_diff())
    plugins = [p for p in (recipe.algo.name, recipe.task.name, recipe.task.reward) if p and is_plugin(p)]
    record = provenance(argv) | found | {
        "study": folder.parent.name, "arm": run.arm, "seed": recipe.seed, "start_model": str(start),
        "config_sha256": config_hash(recipe),
        "device": device_name(model.device), "threads": torch.get_num_threads(), "determinism": determinism(),
        "num_parameters": sum(p.numel() for p in model.parameters()), "planned_steps": recipe.train.steps,
        "num_trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "plugins": {p: plugin_source(p) for p in plugins}, "trust_remote_code": allowed_code(),
    }  # fmt: skip
    fs.write_text(folder / "run.json", json.dumps(record, indent=1))
    log = RunLog(folder, config_hash(recipe)[:32])
    log.event("start", pid=os.getpid(), host=socket.gethostname())
    return log


def reopen_folder(earlier: Earlier, found: dict[str, str], argv: list[str], view: View) -> RunLog:
    """The log of a run that goes on, cut at the checkpoint.

    Errors: GspoError (exit code 2) when the start model, the tokenizer or the data are not the run's; nothing is cut
    then.
    """
    record = earlier.record
    if record.get("trust_remote_code") != allowed_code():
        raise GspoError(
            f"{earlier.folder} began with other code of the model",
            f"run.json has trust_remote_code = {record.get('trust_remote_code')}, this command {allowed_code()}",
            "resume with the --trust-remote-code of the run's first command",
        )
    for key, value in found.items():
        if record[key] != value:
            raise GspoError(
                f"the {key.removesuffix('_sha256')} of {earlier.folder} is another one now",
                f"its sha256 is {value[:12]}, run.json has {str(record[key])[:12]}; the KL penalty, the data order and "
                "every sample depend on it",
                f"restore what {record['start_model']} or the data held when the run began",
            )
    log = RunLog(earlier.folder, record["config_sha256"][:32], earlier.attempt)
    continue_log(earlier, log)
    log.event("start", pid=os.getpid(), host=socket.gethostname(), **start_event(earlier))
    for warning in compare_machine(record, argv, torch.get_num_threads(), log):
        view.note(f"warning: {warning}")
    return log


def make_learner(run: Run, model: PreTrainedModel, shared: Shared = Shared()) -> Learner:
    """The policy with its optimizer, and the critic and reference that the arm asks for."""
    recipe, reference, routing = run.recipe, shared.reference, find_routing(model)
    if recipe.algo.kl.coef > 0 and reference is None:  # with adapters the start model is still there, beneath them
        reference = copy.deepcopy(model).requires_grad_(False) if recipe.model.lora is None else model
    critic = (
        Critic(model, run.params.critic_lr, recipe.train.grad_clip) if getattr(run.algorithm, "CRITIC", False) else None
    )
    replay = recipe.algo.replay
    if replay != "none":
        if routing is not None and shared.rule is not None:
            routing = replace(routing, rule=shared.rule)
        else:
            routing = replayable(model, f"algo.replay = {replay!r}")
    return Learner(
        model=model, optimizer=make_optimizer(model, recipe), algorithm=run.algorithm, params=run.params,
        algo=recipe.algo, temperature=recipe.rollout.temperature, grad_clip=recipe.train.grad_clip,
        critic=critic, reference=reference, ranks=shared.ranks, routing=routing,
    )  # fmt: skip


def make_optimizer(model: torch.nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW with the recipe's settings; the learning rate is set at each step."""
    settings, trained = recipe.train.optimizer, [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(trained, betas=settings.betas, weight_decay=settings.weight_decay, fused=True)


def record_end(log: RunLog, error: BaseException, seconds: float) -> None:
    """Writes the queued lines and how the run ended, as far as the disk allows."""
    code = error.code if isinstance(error, GspoError) else ExitCode.UNEXPECTED
    code = ExitCode.SIGINT if isinstance(error, KeyboardInterrupt) else code
    status = "interrupted" if code in CODES.values() else "failed"
    try:
        log.flush()
        log.event(
            "end", status=status, reason=str(error) or type(error).__name__, exit=int(code), seconds=round(seconds, 3)
        )
        if log.writes:
            seal_run(log.folder)
    except GspoError:
        return  # the disk that ended the run refuses this too; the error itself reaches the user


def device_name(device: torch.device) -> str:
    """`cpu`, or the GPU's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
