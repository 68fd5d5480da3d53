"""Going on with a run: what is checked, mended and compared before anything is loaded or written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gspo_cli.checkpoint.manifest import NAME, sha256
from gspo_cli.checkpoint.protocol import checkpoints, newest, sweep
from gspo_cli.checkpoint.state import State, parse_state
from gspo_cli.config import Recipe, check_params
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.ranks import ALONE, Ranks
from gspo_cli.runlog import fs
from gspo_cli.runlog.chain import Position
from gspo_cli.runlog.heartbeat import clear
from gspo_cli.runlog.lock import locked
from gspo_cli.runlog.log import RunLog
from gspo_cli.runlog.provenance import provenance
from gspo_cli.runlog.read import read_object
from gspo_cli.runlog.repair import check_to, cut, mend_tails, put_aside, sweep_files
from gspo_cli.runlog.seal import read_seal, seal_run
from gspo_cli.training.changes import changed
from gspo_cli.training.saved import STATE
from gspo_cli.training.study import Run, find_algorithm

SAME = ("packages", "python", "cpu", "code")
"""What of `run.json` must be unchanged for a resume to be exact."""


@dataclass(frozen=True)
class Earlier:
    """What there is of a run that is to go on."""

    folder: Path
    run: Run
    record: dict[str, Any]
    """Its `run.json`."""
    checkpoint: Path
    state: State
    attempt: int
    mended: list[dict[str, Any]] = field(default_factory=list)
    rejected: list[dict[str, str]] = field(default_factory=list)

    @property
    def position(self) -> Position:
        """Where the log is cut."""
        return Position(**self.state.log.model_dump())


@contextmanager
def reopened(
    folder: Path, overrides: dict[str, Any], allowed: list[str], note: Callable[[str], None], ranks: Ranks = ALONE
) -> Iterator[Earlier]:
    """Holds a run's folder and gives its newest checkpoint that verifies; each one refused is said aloud. Of several
    ranks the first one does, and tells the others.

    Errors: GspoError when there is nothing to resume (2), a recipe that may not change (2), another process (2), or
    no checkpoint that can be trusted (6); the logs are as they were, but for torn ends.
    """
    if not ranks.first:
        yield as_told(folder, overrides, allowed, ranks.from_first(lambda: None))
        return
    if not (folder / "run.json").is_file():
        raise GspoError(
            f"no run in {folder}",
            "it has no run.json",
            "give the folder that `gspo train` printed",
        )
    fs.refuse_links(folder)
    with locked(folder):
        mended, rejected = mend_tails(folder), list[dict[str, str]]()
        sweep(folder / "checkpoints")
        sweep_files(folder)

        def reject(path: Path, why: str) -> None:
            note(f"warning: {path} was refused: {why}")
            rejected.append({"checkpoint": path.name, "reason": why})

        found = newest(folder / "checkpoints", reject)
        if found is None:
            record_refusal(folder, rejected)
            raise GspoError(
                f"no checkpoint of {folder} can be loaded",
                f"{len(rejected)} were refused" if rejected else "none was ever completed",
                "restore one from a copy; or train anew under another --name, or with --overwrite",
                ExitCode.STORAGE,
            )
        earlier = read_earlier(folder, found[0], overrides, allowed, num_attempts(folder) + 1, mended, rejected)
        ranks.from_first(lambda: {"checkpoint": str(found[0]), "attempt": earlier.attempt})
        yield earlier


def as_told(folder: Path, overrides: dict[str, Any], allowed: list[str], told: dict[str, Any]) -> Earlier:
    """What rank 0 found, on another rank."""
    return read_earlier(folder, Path(told["checkpoint"]), overrides, allowed, told["attempt"], [], [])


def read_earlier(
    folder: Path, checkpoint: Path, overrides: dict[str, Any], allowed: list[str], attempt: int,
    mended: list[dict[str, Any]], rejected: list[dict[str, str]],
) -> Earlier:  # fmt: skip
    """What there is of a run, from its files.

    Errors: GspoError for a recipe that may not change.
    """
    record, config = (read_object(folder / name) for name in ("run.json", "config.json"))
    state = parse_state((checkpoint / STATE).read_text(encoding="utf-8"))
    recipe, changes = changed(config, state.changes, overrides, allowed, str(record["config_sha256"]))
    run = as_run(str(record["arm"]), recipe)
    state = state.model_copy(update={"changes": changes})
    return Earlier(folder, run, record, checkpoint, state, attempt, mended, rejected)


def as_run(arm: str, recipe: Recipe) -> Run:
    """A run from the recipe in its own `config.json`."""
    algorithm = find_algorithm(recipe.algo.name, [])
    return Run(arm, recipe, algorithm, check_params(algorithm.Params, recipe.algo.params))


def compare_machine(record: dict[str, Any], argv: list[str], threads: int, log: RunLog) -> list[str]:
    """What differs from the machine and versions that the run began with, in words; noted as an event if anything."""
    now = provenance(argv) | {"threads": threads}
    keys = [key for key in (*SAME, "threads") if record.get(key) != now.get(key)]
    differ = {key: {"was": record.get(key), "is": now.get(key)} for key in keys}
    if differ:
        log.event("resume_inexact", differ=differ)
    return [f"{key} differs from the run's: the result may differ from an uninterrupted run's" for key in differ]


def continue_log(earlier: Earlier, log: RunLog) -> None:
    """Cuts logs and rollouts at the checkpoint, keeping what is cut off in `dropped/`, and says so in the events.

    Errors: GspoError (exit code 6) when the log is not the one that the checkpoint belongs to.
    """
    folder, at = earlier.folder, earlier.position
    dropped = check_to(folder / "metrics.jsonl", short_hash_of(earlier.record), at)
    for torn in earlier.mended:
        log.event("tail_repaired", **torn)
    for refused in earlier.rejected:
        log.event("checkpoint_rejected", **refused)
    aside = folder / "dropped" / f"attempt-{earlier.attempt - 1}"
    cut_off = cut(folder / "metrics.jsonl", at, dropped, aside.with_suffix(".jsonl"))
    moved = put_aside(folder / "rollouts", earlier.state.step + earlier.state.ahead, aside)
    if cut_off or moved:
        log.event("log_truncated", step=earlier.state.step, log=cut_off, rollouts=moved)
    log.go_on(at.num_lines, at.num_bytes, at.head, dropped)


def short_hash_of(record: dict[str, Any]) -> str:
    """The hash that the first line of the log holds."""
    return str(record["config_sha256"])[:32]


def start_event(earlier: Earlier) -> dict[str, Any]:
    """Where an attempt goes on from."""
    return {"resumed_from": earlier.state.step, "manifest_sha256": sha256(earlier.checkpoint / NAME),
            "changes": earlier.state.changes}  # fmt: skip


def has_begun(folder: Path) -> bool:
    """Whether a run got as far as its first checkpoint, or wrote to its log; if not, it starts from the beginning."""
    log = folder / "metrics.jsonl"
    return bool(checkpoints(folder / "checkpoints")) or (log.exists() and log.stat().st_size > 0)


def is_complete(folder: Path) -> bool:
    """Whether a run's last attempt reached its end."""
    return '"status":"completed"' in last_line(folder / "events.jsonl")


def finish(folder: Path) -> None:
    """Seals a complete run that was killed between its end and its seal; nothing is changed in a sealed one."""
    events = folder / "events.jsonl"
    if read_seal(folder).get(events.name, {}).get("sha256") != sha256(events):
        with locked(folder):
            sweep_files(folder)
            clear(folder)
            seal_run(folder)


def last_line(path: Path) -> str:
    """The last whole line of a file; empty if there is none."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    return lines[-1] if lines else ""


def num_attempts(folder: Path) -> int:
    """Starts noted in the events."""
    path = folder / "events.jsonl"
    return path.read_text(encoding="utf-8").count('"event":"start"') if path.exists() else 0


def record_refusal(folder: Path, rejected: list[dict[str, str]]) -> None:
    """Notes in the events why a run could not go on."""
    log = RunLog(folder, "", num_attempts(folder))
    for refused in rejected:
        log.event("checkpoint_rejected", **refused)
