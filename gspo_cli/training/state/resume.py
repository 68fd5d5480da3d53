"""Find where a run resumes: lock and repair its folder, and choose its newest checkpoint that verifies."""

from collections import ChainMap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gspo_cli.distributed import Ranks
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.events import Emit, Noted
from gspo_cli.plugins import plugin_source
from gspo_cli.recipe import check_params
from gspo_cli.runlog import fs
from gspo_cli.runlog.checksums import read_checksums, sha256_of, write_run_checksums
from gspo_cli.runlog.lock import locked, remove_heartbeat
from gspo_cli.runlog.log import RunLog, remove_unfinished_files, repair_tails
from gspo_cli.runlog.prune import OPTIMIZER, free_ended
from gspo_cli.runlog.strict_json import parse_object, read_object
from gspo_cli.training.state.checkpoint_folder import Damaged, hash_share, list_checkpoints, newest, sweep, verify
from gspo_cli.training.state.contents import STATE, RunState, read_state
from gspo_cli.training.state.run_config import apply_overrides, read_config
from gspo_cli.training.study.arms import Run, find_algorithm


def has_begun(folder: Path) -> bool:
    """Whether a run reached its first checkpoint or wrote to its log; if not, it starts from the beginning."""
    log = folder / "metrics.jsonl"
    return bool(list_checkpoints(folder / "checkpoints")) or (log.exists() and log.stat().st_size > 0)


def is_complete(folder: Path) -> bool:
    """Whether a run's last attempt reached its end."""
    events = folder / "events.jsonl"
    lines = events.read_text(encoding="utf-8", errors="replace").splitlines() if events.is_file() else []
    return bool(lines) and '"status":"completed"' in lines[-1]


def finish(folder: Path) -> None:
    """Ends a complete run that was killed before it had its checksums; changes nothing if they are there."""
    events = folder / "events.jsonl"
    if read_checksums(folder).get(events.name, {}).get("sha256") != sha256_of(events):
        with locked(folder):
            remove_unfinished_files(folder)
            remove_heartbeat(folder)
            write_run_checksums(folder)
            if not read_config(folder).checkpoint.keep_optimizer:
                free_ended(folder)


@dataclass(frozen=True)
class ResumePoint:
    """What a resume continues from."""

    folder: Path
    run: Run
    record: dict[str, Any]
    """The run's `run.json`."""
    checkpoint: Path
    state: RunState
    attempt: int
    mended: Sequence[dict[str, Any]]
    """Torn ends that were cut off the logs."""
    rejected: Sequence[dict[str, str]]
    """Newer checkpoints that do not verify."""
    plugins: dict[str, dict[str, str]]
    """The user's modules that have changed, with the sha256 that was and is."""


@contextmanager
def locked_resume_point(
    folder: Path, overrides: dict[str, Any], allowed: list[str], emit: Emit, ranks: Ranks
) -> Iterator[ResumePoint]:
    """Locks a run's folder and gives the point to resume from; notes each checkpoint that it rejects. Of several ranks,
    rank 0 does this and tells the others.

    Errors: GspoError when there is nothing to resume (2), the recipe may not change so (2), another process holds the
    run (2), or no checkpoint can be trusted (6); only torn ends of the logs have changed then.
    """
    if not ranks.is_main:
        while "checkpoint" not in (chosen := ranks.broadcast(lambda: None)):
            ranks.all_gather(partial(hash_share, Path(chosen["candidate"]), ranks))
        yield read_resume_point(folder, Path(chosen["checkpoint"]), overrides, allowed, chosen["attempt"])
        return
    if not (folder / "run.json").is_file():
        raise GspoError(f"no run in {folder}", "it has no run.json", "give the folder that `gspo train` printed")
    fs.refuse_links(folder)
    record = read_object(folder / "run.json")
    with locked(folder):
        if is_complete(folder) and not any(folder.glob(OPTIMIZER)):
            raise GspoError(
                f"{folder} is complete, and its optimizer's state is gone",
                "further steps need it, and a complete run keeps only its weights",
                "train anew with more steps; --set checkpoint.keep_optimizer=true keeps it",
            )
        mended, rejected, events = repair_tails(folder), list[dict[str, str]](), folder / "events.jsonl"
        attempts = events.read_bytes().count(b'"event":"start"') if events.exists() else 0
        sweep(folder / "checkpoints")
        remove_unfinished_files(folder)

        def reject(path: Path, why: str) -> None:
            emit(Noted(f"warning: {path} was refused: {why}"))
            rejected.append({"checkpoint": path.name, "reason": why})

        def check(path: Path) -> None:
            ranks.broadcast(lambda: {"candidate": str(path)})
            shares = ranks.all_gather(partial(hash_share, path, ranks)) if ranks.size > 1 else []
            verify(path, dict(ChainMap(*shares)))
            state = read_state(path)
            if (state.config_sha256, state.start_sha256) != (record.get("config_sha256"), record.get("model_sha256")):
                raise Damaged(f"{STATE} is that of a run with another configuration or start model")

        checkpoint = newest(folder / "checkpoints", reject, check)
        if checkpoint is None:
            log = RunLog(folder, "", attempts)
            for entry in rejected:
                log.event("checkpoint_rejected", **entry)
            raise GspoError(
                f"no checkpoint of {folder} can be loaded",
                f"{len(rejected)} were refused" if rejected else "none was ever completed",
                "restore one from a copy; or train anew under another --name, or with --overwrite",
                ExitCode.STORAGE,
            )
        point = read_resume_point(folder, checkpoint, overrides, allowed, attempts + 1, mended, rejected)
        ranks.broadcast(lambda: {"checkpoint": str(checkpoint), "attempt": point.attempt})
        yield point


def read_resume_point(
    folder: Path, checkpoint: Path, overrides: dict[str, Any], allowed: list[str], attempt: int,
    mended: Sequence[dict[str, Any]] = (), rejected: Sequence[dict[str, str]] = (),
) -> ResumePoint:  # fmt: skip
    """The run and its state, from its files. Errors: GspoError for a recipe or a module that may not change so."""
    record, config = (read_object(folder / name) for name in ("run.json", "config.json"))
    state = read_state(checkpoint)
    recipe, changes = apply_overrides(config, state.changes, overrides, allowed, str(record["config_sha256"]))
    # nothing is ahead of the start: the first batches are sampled when training begins
    if state.step and state.ahead < min(recipe.rollout.max_lag, recipe.train.steps - state.step):
        raise GspoError(
            f"{folder} sampled no further than rollout batch {state.step + state.ahead}",
            f"with rollout.max_lag = {recipe.rollout.max_lag} the next would be older than the last update, and is not",
            "train anew with these settings",
        )
    plugins = changed_plugins(folder, record)
    if plugins and "plugins" not in allowed:
        raise GspoError(
            f"{', '.join(plugins)} changed since {folder} began",
            "a reward, task or algorithm that changes midway makes two experiments in one log",
            "restore the file, or start another run; --allow-change plugins goes on, and reports say so",
        )
    algorithm = find_algorithm(recipe.algo.name)
    run = Run(str(record["arm"]), recipe, algorithm, check_params(algorithm.Params, recipe.algo.params))
    state = state.model_copy(update={"changes": changes})
    return ResumePoint(folder, run, record, checkpoint, state, attempt, mended, rejected, plugins)


def changed_plugins(folder: Path, record: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The user's modules whose files are not those that the run last used: as it began, or as a resume allowed."""
    known = {str(name): str(source["sha256"]) for name, source in record.get("plugins", {}).items()}
    events = folder / "events.jsonl"
    for line in events.read_text("utf-8", "replace").splitlines() if known and events.is_file() else []:
        if '"event":"plugins_changed"' in line:
            known |= {name: change["is"] for name, change in parse_object(line)["plugins"].items()}
    found = {name: {"was": was, "is": plugin_source(name)["sha256"]} for name, was in known.items()}
    return {name: change for name, change in found.items() if change["was"] != change["is"]}
