"""What a run leaves in its folder besides log and checkpoints: provenance, stored batches, how it ended."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_cli.config import Recipe
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.foreign_code import allowed_code
from gspo_cli.models.load import tokenizer_hash, weights_hash
from gspo_cli.models.torch_setup import determinism
from gspo_cli.plugins import is_plugin, plugin_source
from gspo_cli.rollout.store import write_rollout
from gspo_cli.runlog import fs
from gspo_cli.runlog.folder import fresh
from gspo_cli.runlog.log import RunLog
from gspo_cli.runlog.provenance import code_diff, provenance
from gspo_cli.runlog.seal import seal_run, sha256_of
from gspo_cli.training.changes import config_hash, config_table
from gspo_cli.training.resume import Earlier, compare_machine, continue_log, start_event
from gspo_cli.training.signals import CODES
from gspo_cli.training.study import Run
from gspo_cli.types import RolloutBatch


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
    named = (recipe.algo.name, recipe.task.name, recipe.task.reward, *recipe.eval.bench)
    plugins = [name for name in named if name and is_plugin(name)]
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


def reopen_folder(earlier: Earlier, found: dict[str, str], argv: list[str], note: Callable[[str], None]) -> RunLog:
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
        note(f"warning: {warning}")
    return log


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
