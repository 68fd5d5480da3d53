"""A run's folder: created with its provenance, reopened at a checkpoint, closed with how the run ended."""

import json
import os
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_cli.config import Recipe, RolloutConfig
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.events import Emit, Noted
from gspo_cli.models.admission import paths_of, position_limit
from gspo_cli.models.device import determinism
from gspo_cli.models.load import load_policy, tokenizer_hash, weights_hash
from gspo_cli.models.remote_code import allowed_code
from gspo_cli.plugins import is_plugin, plugin_path, plugin_source
from gspo_cli.rollout.collect import PromptStream, collect
from gspo_cli.rollout.engine import Progress, full_distribution
from gspo_cli.rollout.engines import open_engine
from gspo_cli.rollout.prompts import encode, fitting, prompt_notes
from gspo_cli.rollout.store import write_rollout
from gspo_cli.runlog import fs
from gspo_cli.runlog.checksums import sha256_of, write_run_checksums
from gspo_cli.runlog.folder import empty_run_folder
from gspo_cli.runlog.log import RunLog, check_log, move_later_rollouts, truncate_log
from gspo_cli.runlog.provenance import code_diff, provenance
from gspo_cli.task_config import environment_module
from gspo_cli.tasks import make_task, read_problems
from gspo_cli.training.session import CODES, Session
from gspo_cli.training.setup import Setup
from gspo_cli.training.state.checkpoint_folder import MANIFEST
from gspo_cli.training.state.resume import ResumePoint
from gspo_cli.training.state.run_config import config_hash
from gspo_cli.training.study.arms import Run
from gspo_cli.types import RolloutBatch

EXACT = ("packages", "python", "cpu", "code", "threads")
"""What of `run.json` must be unchanged for a resume to be exact."""


def create_folder(
    run: Run, folder: Path, recipe_text: str, argv: list[str], setup: Setup, changes: dict[str, Any],
    hashes: dict[str, str],
) -> RunLog:  # fmt: skip
    """Creates the folder with its provenance; `changes` = what a resume of the study changed. Returns its log."""
    recipe, model = run.recipe, setup.model
    empty_run_folder(folder)
    fs.write_text(folder / "recipe.toml", recipe_text)
    fs.write_text(folder / "config.json", json.dumps(recipe.model_dump(mode="json"), indent=1))
    fs.write_text(folder / "code.diff", code_diff())
    rewards = (recipe.task.reward, *(reward.name for reward in recipe.task.rewards))
    environment = recipe.task.environment and environment_module(recipe.task.environment)
    named = (recipe.algo.name, recipe.task.name, *rewards, environment, recipe.rollout.engine, *recipe.eval.bench)
    device = model.device
    record = provenance(argv) | hashes | {
        "engine": asdict(setup.engine.info), "paths": asdict(paths_of(model)),
        "problems_left_out": setup.num_dropped,
        "study": folder.parent.name, "arm": run.arm, "algo": recipe.algo.model_dump(mode="json"),
        "seed": recipe.seed, "start_model": str(setup.start),
        "config_sha256": config_hash(recipe),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(), "determinism": determinism(),
        "num_parameters": sum(p.numel() for p in model.parameters()), "planned_steps": recipe.train.steps,
        "num_trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "plugins": {
            name: plugin_source(name) | {"path": str(plugin_path(name))} for name in named if name and is_plugin(name)
        },
        "trust_remote_code": allowed_code(),
    }  # fmt: skip
    fs.write_text(folder / "run.json", json.dumps(record, indent=1))
    log = RunLog(folder, record["config_sha256"][:32])
    log.event("start", pid=os.getpid(), host=socket.gethostname(), **({"changes": changes} if changes else {}))
    return log


def reopen_folder(point: ResumePoint, argv: list[str], emit: Emit, hashes: dict[str, str]) -> RunLog:
    """The log of a resumed run, cut at the checkpoint.

    Errors: GspoError (exit code 2) when start model, tokenizer or data are not the run's; nothing is cut then.
    """
    record = point.record
    if record.get("trust_remote_code") != allowed_code():
        raise GspoError(
            f"{point.folder} began with other code of the model",
            f"run.json has trust_remote_code = {record.get('trust_remote_code')}, this command {allowed_code()}",
            "resume with the --trust-remote-code of the run's first command",
        )
    for key, value in hashes.items():
        if record[key] != value:
            raise GspoError(
                f"the {key.removesuffix('_sha256')} of {point.folder} has changed",
                f"its sha256 is {value[:12]}, run.json has {str(record[key])[:12]}; the KL penalty, the data order and "
                "every sample depend on it",
                f"restore what {record['start_model']} or the data held when the run began",
            )
    log = RunLog(point.folder, record["config_sha256"][:32], point.attempt)
    cut_logs(point, log)
    log.event(
        "start", pid=os.getpid(), host=socket.gethostname(), resumed_from=point.state.step,
        manifest_sha256=sha256_of(point.checkpoint / MANIFEST), changes=point.state.changes,
    )  # fmt: skip
    if point.plugins:
        log.event("plugins_changed", step=point.state.step, plugins=point.plugins)
        emit(
            Noted(
                f"warning: {', '.join(point.plugins)} changed after rollout batch {point.state.step}: the log says so"
            )
        )
    now = provenance(argv) | {"threads": torch.get_num_threads()}
    differ = {key: {"was": record.get(key), "is": now.get(key)} for key in EXACT if record.get(key) != now.get(key)}
    if differ:
        log.event("resume_inexact", differ=differ)
    for key in differ:
        emit(Noted(f"warning: {key} differs from the run's: the result may differ from an uninterrupted run's"))
    return log


def cut_logs(point: ResumePoint, log: RunLog) -> None:
    """Cuts logs and rollouts at the checkpoint; keeps what is cut off in `dropped/`, with events that say so.

    Errors: GspoError (exit code 6) when the log is not the one that the checkpoint belongs to.
    """
    folder, position = point.folder, point.state.log
    dropped = check_log(folder / "metrics.jsonl", log.head, position)
    for torn in point.mended:
        log.event("tail_repaired", **torn)
    for entry in point.rejected:
        log.event("checkpoint_rejected", **entry)
    aside = folder / "dropped" / f"attempt-{point.attempt - 1}"
    cut_off = truncate_log(folder / "metrics.jsonl", position, dropped, aside.with_suffix(".jsonl"))
    moved = move_later_rollouts(folder / "rollouts", point.state.step + point.state.ahead, aside)
    if cut_off or moved:
        log.event("log_truncated", step=point.state.step, log=cut_off, rollouts=moved)
    log.resume(position.num_lines, position.num_bytes, position.head, dropped)


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
            write_run_checksums(log.folder)
    except GspoError:
        return  # the disk that ended the run refuses this too; the error itself reaches the user


def rollout_metadata(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, recipe: Recipe) -> dict[str, str]:
    """What a reader of a stored batch needs: hashes of the policy and tokenizer that sampled it, and the settings."""
    hashes = {"model_sha256": weights_hash(model), "tokenizer_sha256": tokenizer_hash(tokenizer)}
    return hashes | sampling_metadata(recipe)


def sampling_metadata(recipe: Recipe) -> dict[str, str]:
    """The settings that a batch was sampled with."""
    rollout = recipe.rollout
    return {"temperature": str(rollout.temperature), "max_new_tokens": str(rollout.max_new_tokens)}


def stored_as(session: Session, step: int) -> dict[str, str] | None:
    """The metadata of the batch of this step, if it is stored; call it while the model is the one that samples it.
    Every rank must.

    A batch that the next one replaces has no hash of its model: on large weights it would take longer than the batch.
    """
    recipe = session.run.recipe
    if is_kept(step, recipe.rollout):
        return rollout_metadata(session.learner.model, session.tokenizer, recipe)
    return sampling_metadata(recipe) if recipe.rollout.keep_newest else None


def store_if_due(session: Session, batch: RolloutBatch, metadata: dict[str, str] | None) -> None:
    """Stores a scored batch as `rollout.store` and `rollout.keep_newest` want it (see `stored_as`), with its hash as an
    event; then removes the newest before it.

    The event comes before the removal, so that a crash between them leaves a file too many, never one missing.
    """
    config, log = session.run.recipe.rollout, session.log
    if metadata is None or not log.writes:
        return
    name = f"rollouts/step_{batch.step:06d}.parquet"
    write_rollout(batch, log.folder / name, metadata)
    earlier = [path for path in sorted((log.folder / name).parent.glob("step_*.parquet")) if _step(path) < batch.step]
    passed = [path for path in earlier if config.keep_newest and not is_kept(_step(path), config)]
    replaces = {"replaces": [f"rollouts/{path.name}" for path in passed]} if passed else {}
    log.event("rollout_stored", step=batch.step, file=name, sha256=sha256_of(log.folder / name), **replaces)
    for path in passed:
        fs.remove(path)


def is_kept(step: int, config: RolloutConfig) -> bool:
    """Whether the batch of this step stays stored when a newer one comes."""
    return bool(config.store and step % config.store == 0) or (config.keep_newest and step == 1)


def _step(path: Path) -> int:
    """The rollout batch of a stored file."""
    return int(path.stem.removeprefix("step_"))


def sample_once(
    recipe: Recipe, start: Path, seed: int, target: Path, progress: Progress, note: Callable[[str], None]
) -> RolloutBatch:
    """Samples, scores and stores the batch that training with this recipe and seed would start with.

    `progress` is told how far the engine is, and `note` what to be warned of.
    """
    model, tokenizer = load_policy(recipe.model, start)
    task = make_task(recipe.task)
    engine = open_engine(recipe.rollout, model, tokenizer, recipe.records_routes, progress)
    problems = read_problems(task, recipe.task)
    fit = fitting(problems, tokenizer, position_limit(model.config), recipe.rollout.max_new_tokens, recipe.task)
    rollout, chosen = recipe.rollout, PromptStream(fit, recipe.rollout.prompts, seed).batch(1)
    sampling, seed_keys = full_distribution(rollout), (seed, "sample", 1)
    for line in prompt_notes(tokenizer, encode(tokenizer, fit[0], recipe.task), recipe.task):
        note(f"warning: {line}")
    with closing(engine):
        batch = collect(
            engine, tokenizer, task, chosen, rollout.samples, sampling, seed_keys, 0, recipe.task, rollout.stop
        )
    write_rollout(batch, target, rollout_metadata(model, tokenizer, recipe))
    return batch
