"""How a checkpoint comes to be and goes: at no moment does a crash leave a folder `step-N` that is not whole.

A temporary folder is filled and fsynced file by file, its manifest comes last, then one rename gives it its name. An
old checkpoint is removed only after the new one has been read back, and loses its name before its files.
There is no pointer to the latest: the list of checkpoints is what is on disk and verifies.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

from gspo_cli.checkpoint.manifest import NAME, Damaged, Manifest, describe, files_in, verify
from gspo_cli.runlog import fs

ROOM = 1.2  # times the last checkpoint's size must be free before the next


def checkpoints(folder: Path) -> list[Path]:
    """The folders named as checkpoints, by step: `step-000009` before `step-000010`, whether they verify or not."""
    found = [p for p in folder.glob("step-*") if re.fullmatch(r"step-\d{6,}", p.name)]
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))


def sweep(folder: Path, patterns: tuple[str, ...] = (".tmp-*", ".del-*", ".part-*")) -> None:
    """Removes what a crash left behind: unfinished and half-deleted checkpoints, and what ranks gave towards one."""
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            fs.remove_tree(path)


def write(folder: Path, step: int, attempt: int, fill: Callable[[Path], None]) -> Manifest:
    """A new checkpoint: `fill` writes its files into the folder it is given.

    One of this step that is there already is kept if it is equal, else put aside as `step-N.bad-ATTEMPT`.
    Errors: OSError when the disk refuses, and Damaged when what was written reads back otherwise; other checkpoints
    are untouched then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder, (".tmp-*", ".del-*"))
    require_room(folder)
    name = f"step-{step:06d}"
    temporary, target = folder / f".tmp-{name}-{attempt}", folder / name
    os.mkdir(temporary)
    try:
        fill(temporary)
        for path in files_in(temporary):
            fs.fsync(path)
        manifest = describe(temporary, step)
        (temporary / NAME).write_text(manifest.text(), encoding="utf-8")
        fs.fsync(temporary / NAME)
        for path in [p for p in temporary.rglob("*") if p.is_dir()]:
            fs.fsync(path)
        fs.fsync(temporary)
        if os.path.lexists(target):
            if is_equal(target, manifest):
                return manifest
            fs.rename(target, unused(folder, f"{name}.bad-{attempt}"))
        fs.rename(temporary, target)
    finally:
        if temporary.exists():
            fs.remove_tree(temporary)
    if verify(target) != manifest:
        raise Damaged("it reads back otherwise than it was written")
    return manifest


def is_equal(target: Path, manifest: Manifest) -> bool:
    """Whether the checkpoint there is whole and the same."""
    try:
        return verify(target) == manifest
    except Damaged:
        return False


def unused(folder: Path, name: str) -> Path:
    """A path of this name, or with a number if that is taken."""
    path, number = folder / name, 1
    while os.path.lexists(path):
        path, number = folder / f"{name}.{number}", number + 1
    return path


def require_room(folder: Path) -> None:
    """Errors: OSError (no space left) when the next checkpoint would hardly fit."""
    known = checkpoints(folder)
    if not known:
        return
    needed = int(ROOM * sum(p.stat().st_size for p in known[-1].rglob("*") if p.is_file() and not p.is_symlink()))
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < needed:
        raise OSError(errno.ENOSPC, f"{free.f_bavail * free.f_frsize} bytes are free; a checkpoint needs {needed}")


def rotate(folder: Path, keep: int, protected: set[int]) -> None:
    """Removes all but the newest `keep` checkpoints and those of the steps `protected`.

    Call it only after the newest has been verified (`write` does that).
    """
    for path in checkpoints(folder)[:-keep]:
        if int(path.name.removeprefix("step-")) not in protected:
            doomed = folder / f".del-{path.name}"
            fs.rename(path, doomed)
            fs.remove_tree(doomed)


def newest(folder: Path, reject: Callable[[Path, str], None]) -> tuple[Path, Manifest] | None:
    """The newest checkpoint that verifies; `reject` is told of each newer one that does not, and why."""
    for path in reversed(checkpoints(folder)):
        try:
            return path, verify(path)
        except Damaged as error:
            reject(path, str(error))
    return None
