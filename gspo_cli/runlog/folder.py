"""Study and run folders: `<out>/<study>/<arm>-s<seed>/`."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from gspo_cli.distributed import created_by_first_attempt, launch_time
from gspo_cli.errors import ExitCode, GspoError, first_fault, nearest, quoted
from gspo_cli.runlog.fs import remove_tree, storage_error
from gspo_cli.runlog.lock import LOCK
from gspo_cli.runlog.strict_json import read_object

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DEVICES = {"con", "prn", "aux", "nul", *(f"{kind}{n}" for kind in ("com", "lpt") for n in range(1, 10))}
"""Names that are devices on some systems."""


def cache_root() -> Path:
    """Where start models are cached between studies."""
    return Path(os.environ.get("GSPO_CACHE") or Path.home() / ".cache" / "gspo")


def study_folder(out: Path, name: str | None, recipe: str) -> Path:
    """The folder of a study called `name`, by default the recipe's name and the time.

    Errors: GspoError for a name that could leave `out` or that some file systems refuse.
    """
    if name is None:
        now = launch_time().astimezone()  # to the millisecond: a loop in a shell starts several studies in one second
        name = f"{recipe[:44]}-{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03d}"
    if not NAME.fullmatch(name) or name.endswith(".") or name.split(".")[0].lower() in DEVICES:
        raise GspoError(
            f"{name!r} is not a valid study name",
            "a name has up to 64 letters, digits, '.', '_' and '-', and starts with a letter or digit",
            "choose another --name",
        )
    return out / name


def check_free(study: Path, runs: list[str], overwrite: bool) -> None:
    """Refuse a study folder that already holds one of the runs; with `overwrite`, one that holds something else.

    A run that the first attempt of this command started is no obstacle.
    Errors: GspoError naming the ways out; nothing was changed.
    """
    if study.exists() and not study.is_dir():
        raise GspoError(f"{study} is not a folder", "a file of that name is in the way", "choose another --name")
    refuse_file(study)
    used = [r for r in runs if (study / r).exists() and not started_by_first_attempt(study / r)]
    if used and not overwrite:
        begun = quoted(study if runs[1:] else study / used[0])
        raise GspoError(
            f"run folder {study / used[0]} already holds a run{_progress(study / used[0])}",
            "starting again would mix two logs",
            f"--resume {begun} to continue it, --overwrite to delete it, or --name OTHER",
        )
    for run in used:
        if not is_run(study / run):
            raise GspoError(
                f"will not delete {study / run}", "it is not a run folder (no run.json)", "move it, or use --name OTHER"
            )


def is_run(folder: Path) -> bool:
    """Whether a folder is a run folder, possibly one whose process died while creating it."""
    return not folder.is_symlink() and ((folder / LOCK).is_file() or (folder / "run.json").is_file())


def started_by_first_attempt(run: Path) -> bool:
    """Whether a folder is a run that the first attempt of this command started."""
    return is_run(run) and created_by_first_attempt(_created(run / "run.json"))


def empty_run_folder(run: Path) -> None:
    """Delete everything in a run folder but its lock, which this process holds."""
    for path in sorted(run.iterdir()):
        if path.name == LOCK:
            continue
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            os.unlink(path)


def _progress(run: Path) -> str:
    """` (40 of 50 steps)`; empty if the folder does not tell."""
    try:
        planned = json.loads((run / "config.json").read_text())["train"]["steps"]
        lines = (run / "metrics.jsonl").read_text().splitlines()
        return f" ({json.loads(lines[-1])['step']} of {planned} steps)"
    except (OSError, ValueError, KeyError, IndexError):
        return ""


def refuse_file(folder: Path) -> None:
    """Errors: GspoError where a file is in the place of a folder that is to be made, or of one above it."""
    if any(map(os.path.isfile, (folder, *folder.parents))):
        raise GspoError(f"cannot write {folder}", "a file is in the way", "choose another folder with --out")


def make_writable(folder: Path) -> None:
    """Create a folder and make sure that files can be written there. Errors: GspoError (exit code 2)."""
    probe = folder / ".tmp-write-test"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.unlink(missing_ok=True)  # writing would follow a link
            probe.write_bytes(b"x")
        finally:
            probe.unlink(missing_ok=True)  # a full disk takes the name, but not the byte
    except OSError as error:
        refused = storage_error(folder, error)
        raise GspoError(
            refused.message, refused.why, "choose another folder with --out", ExitCode.USER_ERROR
        ) from error


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """`make_writable`, undone if the context fails before anything has come into the folder. Errors: as there."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        make_writable(folder)
        yield
    except BaseException:
        with suppress(OSError):  # it holds something
            for path in made:
                path.rmdir()
        raise


MARKS = ("run.json", "study.json", "metrics.jsonl")
"""One of these is left in a run or a study, whatever else is damaged."""
SHORTEST_ID = 4


def find_folder(name: str, root: Path) -> Path | None:
    """The study, run or folder of studies that a name means, by the one rule of all commands; None for no such thing.

    It is a path, or a name under `root` (`<study>`, `<study>/<run>`), or of a run under `root` its own name or the
    first characters of its id. A folder without runs means nothing: it may be a recipe's, of the same name as a study.
    Errors: GspoError if several runs are called so.
    """
    for below in ("", "*/", "*/*/"):
        for folder in (Path(name), root / name):
            if any(path.is_file() for mark in MARKS for path in folder.glob(below + mark)):
                return folder
    runs = sorted(root.glob("*/*/run.json"))
    by_id = [path for path in runs if len(name) >= SHORTEST_ID and str(_record(path).get("run_id")).startswith(name)]
    found = [path.parent for path in by_id or runs if by_id or path.parent.name == name]
    if len(found) > 1:
        raise GspoError(
            f"several runs are called {name!r}",
            "; ".join(map(str, found[:4])) + ("; ..." if found[4:] else ""),
            "`gspo runs ls` lists them; give the path",
        )
    return found[0] if found else None


def names_under(root: Path) -> list[str]:
    """What `find_folder` knows under a root: studies, and their runs as `<study>/<run>`."""
    studies = {path.parent.parent.name for path in root.glob("*/*/run.json")}
    runs = {f"{path.parent.parent.name}/{path.parent.name}" for path in root.glob("*/*/run.json")}
    return sorted(studies | runs)


def unknown_folder(kind: str, name: str, root: Path) -> GspoError:
    """The error for a name that `find_folder` does not know, with the nearest."""
    known = [*(path.name for path in root.glob("*") if path.is_dir()), *names_under(root)]
    return GspoError(
        f"no {kind} {name!r}",
        f"it is neither a path nor a name or id under {root}",
        nearest(
            name,
            [*known, *(one.partition("/")[2] for one in known)],
            "`gspo runs ls` lists them, `gspo runs ls FOLDER` those of another folder",
        ),
    )


def only_run(folder: Path) -> Path:
    """The run that a folder is, or the only one of a study. Errors: GspoError for a study of several, or of none."""
    runs = [folder] if (folder / "run.json").is_file() else sorted(file.parent for file in folder.glob("*/run.json"))
    if len(runs) == 1:
        return runs[0]
    some = ", ".join(map(str, runs[:4])) + (", ..." if runs[4:] else "")
    raise GspoError(
        f"{folder} is a study of {len(runs)} runs" if runs else f"no run in {folder}",
        "one run is wanted here",
        f"give one: {some}" if runs else "`gspo runs ls` lists the runs",
    )


def newest_run(out: Path) -> Path:
    """The run under `out` that was started last, `published` excluded. Errors: GspoError if there is none."""
    files = [p for p in out.glob("*/*/run.json") if p.is_file() and p.parts[-3] != "published"]
    if not files:
        raise GspoError(
            f"no runs under {out}",
            "no folder <study>/<run>/ there has a run.json",
            "train first (`gspo train`), or give a path or `--out ROOT`",
        )
    return max((_time(_created(p)), p.parent) for p in files)[1]


def _time(created: str) -> datetime:
    """Runs without a readable time count as the oldest."""
    try:
        time = datetime.fromisoformat(created)
    except ValueError:
        time = datetime.min
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _created(run_json: Path) -> str:
    """When a run was started, according to its run.json; empty if it cannot be read."""
    return str(_record(run_json).get("created", ""))


def _record(run_json: Path) -> dict[str, Any]:
    """A run's run.json; empty if it cannot be read."""
    try:
        record: dict[str, Any] = json.loads(run_json.read_text())
        return record if isinstance(record, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


class StudyFile(BaseModel):
    """`study.json`: a study's plans, and the folders of the runs that were begun in it."""

    model_config = ConfigDict(strict=True)
    plans: list[dict[str, Any]]
    begun: list[str] = []


def read_study_file(study: Path) -> StudyFile:
    """The study's own file. Errors: GspoError (exit code 6) for a damaged one."""
    path = study / "study.json"
    try:
        return StudyFile.model_validate(read_object(path))
    except ValidationError as error:
        raise GspoError(
            f"{path} is corrupt", first_fault(error), "restore the file from a copy", ExitCode.STORAGE
        ) from error
