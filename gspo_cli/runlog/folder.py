"""Study and run folders: `<out>/<study>/<arm>-s<seed>/`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from gspo_cli.attempt import command_began, of_first_try
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.runlog.fs import remove_tree, storage_error
from gspo_cli.runlog.lock import NAME as LOCK

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DEVICES = {"con", "prn", "aux", "nul", *(f"{kind}{n}" for kind in ("com", "lpt") for n in range(1, 10))}
"""Names that mean a device on some systems."""


def study_folder(out: Path, name: str | None, recipe: str) -> Path:
    """Where a study goes: `name`, or the recipe's with the time.

    Errors: GspoError for a name that could leave `out` or that some file system refuses.
    """
    if name is None:
        name = f"{recipe[:48]}-{command_began().astimezone():%Y%m%d-%H%M%S}"
    if not NAME.fullmatch(name) or name.endswith(".") or name.split(".")[0].lower() in DEVICES:
        raise GspoError(
            f"{name!r} cannot name a study",
            "a name has up to 64 letters, digits, '.', '_' and '-', and starts with a letter or digit",
            "choose another --name",
        )
    return out / name


def check_free(study: Path, runs: list[str], overwrite: bool) -> None:
    """Refuses a study folder that already holds one of the runs, or with `overwrite` something that is no run; what a
    first try of this command has begun is no obstacle.

    Errors: GspoError naming the ways out; nothing is touched then.
    """
    if study.exists() and not study.is_dir():
        raise GspoError(f"{study} is not a folder", "a file of that name is in the way", "choose another --name")
    used = [r for r in runs if (study / r).exists() and not begun_before(study / r)]
    if used and not overwrite:
        done = progress(study / used[0])
        raise GspoError(
            f"run folder {study / used[0]} already holds a run{done}",
            "starting again would mix two logs",
            f"--resume {study / used[0]} to go on with it, --overwrite to delete it, or --name OTHER",
        )
    for run in used:
        if not is_run(study / run):
            raise GspoError(
                f"will not delete {study / run}", "it is not a run folder (no run.json)", "move it, or use --name OTHER"
            )


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's, or one that was being made when its process died."""
    begun = not folder.is_symlink() and (folder / LOCK).is_file()
    return begun or (not folder.is_symlink() and (folder / "run.json").is_file())


def begun_before(run: Path) -> bool:
    """Whether a folder is a run's that this command's own first try has begun."""
    return is_run(run) and of_first_try(created(run / "run.json"))


def fresh(run: Path) -> None:
    """Empties a run's folder but for the lock on it, which this process holds (see `check_free`)."""
    for path in sorted(run.iterdir()):
        if path.name == LOCK:
            continue
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            os.unlink(path)


def progress(run: Path) -> str:
    """` (40 of 50 steps)` as far as the folder tells."""
    try:
        planned = json.loads((run / "config.json").read_text())["train"]["steps"]
        lines = (run / "metrics.jsonl").read_text().splitlines()
        return f" ({json.loads(lines[-1])['step']} of {planned} steps)"
    except (OSError, ValueError, KeyError, IndexError):
        return ""


def make_writable(folder: Path) -> None:
    """Creates a folder and proves that files can be written there.

    Errors: GspoError (exit code 2).
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".tmp-write-test"
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        refused = storage_error(folder, error)
        raise GspoError(
            refused.message, refused.why, "choose another folder with --out", ExitCode.USER_ERROR
        ) from error


def newest_run(out: Path) -> Path:
    """The run under `out` that was started last, `published` apart.

    Errors: GspoError when there is none.
    """
    found = [(created(p), p.parent) for p in out.glob("*/*/run.json") if p.parts[-3] != "published"]
    if not found:
        raise GspoError(f"no runs under {out}", "no folder there holds a run.json", "train first: gspo train")
    return max(found)[1]


def created(run_json: Path) -> str:
    """When a run was started, from its run.json; empty if that cannot be read."""
    try:
        record: dict[str, Any] = json.loads(run_json.read_text())
        return str(record.get("created", ""))
    except (OSError, ValueError):
        return ""
