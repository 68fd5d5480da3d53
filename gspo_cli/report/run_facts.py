"""What a run folder says about a run besides its curves: its configuration, provenance and how it ended."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gspo_cli.errors import ExitCode
from gspo_cli.report.folders import Run
from gspo_cli.report.jsonl import LogReader, corrupt, read_object

Status = Literal["completed", "failed", "running", "interrupted", "broken"]
"""`failed`: a training guard stopped it, which counts. `broken`: the engine, the disk or a defect did, which does not.
`running`: no end was recorded, so it is still going or was killed."""

NOT_FINITE = "not finite"
"""What the reason says when training stopped on a loss or gradient that is nan or infinite."""
PER_RUN = {"--algo", "--seed", "--seeds", "--name", "--out"}
SWITCHES = {"--overwrite", "--no-overwrite", "--json", "--no-json"}


@dataclass(frozen=True, slots=True)
class Facts:
    """One run."""

    run: Run
    about: dict[str, Any]
    """Its `run.json`."""
    config: dict[str, Any]
    status: Status
    reason: str
    """Why it ended, where it did not complete."""
    invalid: str | None
    """The reason in its `invalidated.json`; None = it counts."""
    config_flat: dict[str, Any] = field(default_factory=dict)
    """The configuration by dotted key."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.run.folder.name

    @property
    def planned(self) -> int:
        """Rollout batches of the plan."""
        return int(self.config["train"]["steps"])

    @property
    def not_finite(self) -> bool:
        """Whether training stopped on values that are not finite."""
        return self.status == "failed" and NOT_FINITE in self.reason


def read_facts(run: Run) -> Facts:
    """Reads the small files of a run folder.

    Errors: GspoError (exit code STORAGE) naming a file that cannot be what was written.
    """
    config = read_object(run.folder / "config.json")
    steps = config["train"].get("steps") if isinstance(config.get("train"), dict) else None
    if type(steps) is not int or steps < 1:
        raise corrupt(str(run.folder / "config.json"), f"`train.steps` is {steps!r}, not a positive whole number")
    status, reason = end_of(run.folder)
    note = run.folder / "invalidated.json"
    invalid = str(read_object(note).get("reason") or "no reason given") if note.is_file() else None
    about = read_object(run.folder / "run.json")
    return Facts(run, about, config, status, reason, invalid, dict(flatten(config)))


def end_of(folder: Path) -> tuple[Status, str]:
    """How the last attempt ended, from `events.jsonl`."""
    path = folder / "events.jsonl"
    if not path.is_file():
        return "running", "it has no events.jsonl"
    reader = LogReader(path)
    events = [event for block in reader.blocks() for event in reader.parse(block)]
    marks = [event for event in events if event.get("event") in ("start", "end")]
    if not marks or marks[-1]["event"] == "start":
        return "running", "no end was recorded: it is running or was killed"
    end, reason = marks[-1], str(marks[-1].get("reason", ""))
    status = end.get("status")
    if status == "completed":
        return "completed", ""
    if status == "failed":
        return ("failed" if end.get("exit") == ExitCode.GUARD else "broken"), reason
    return "interrupted", reason or str(status)


def flatten(table: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """(dotted key, value) of nested tables; an empty table is a value."""
    rows: list[tuple[str, Any]] = []
    for key, value in table.items():
        inner = isinstance(value, dict) and value
        rows += flatten(value, f"{prefix}{key}.") if inner else [(f"{prefix}{key}", value)]
    return rows


def command_for(facts: Facts, arm: str, seeds: list[int], overwrite: bool = False) -> str:
    """The command that trains runs like this one with another arm or other seeds, into the same study."""
    argv = facts.about.get("argv")
    words = [str(word) for word in argv[1:]] if isinstance(argv, list) and argv else ["train"]
    kept, skip = [], False
    for word in words:
        name = word.partition("=")[0]
        if not skip and name not in PER_RUN | SWITCHES:
            kept.append(word)
        skip = not skip and word in PER_RUN
    study = facts.run.folder.resolve().parent
    more = ["--algo", arm, "--seeds", ",".join(map(str, seeds)), "--out", str(study.parent), "--name", study.name]
    return shlex.join(["gspo", *kept, *more, *(["--overwrite"] if overwrite else [])])
