"""A checkpoint on disk: written, verified and deleted so that a crash leaves it whole or absent."""

import errno
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from gspo_cli.distributed import Ranks
from gspo_cli.runlog import fs
from gspo_cli.runlog.checksums import Entries, entries
from gspo_cli.runlog.strict_json import parse_object

MANIFEST = "MANIFEST.json"
SCHEMA = 1
ROOM = 1.2
"""Free space that a new checkpoint requires, in sizes of the last one."""


class Damaged(Exception):
    """A checkpoint that differs from what was saved; the text says how."""


REFUSED = (OSError, SafetensorError, Damaged)
"""What a disk that refuses a checkpoint raises."""


@dataclass(frozen=True)
class Manifest:
    """The files of a checkpoint with their hashes."""

    step: int
    files: dict[str, dict[str, Any]]
    """Path within the checkpoint -> `bytes` and `sha256`."""
    schema: int = SCHEMA

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        return sum(file["bytes"] for file in self.files.values())

    def text(self) -> str:
        """The manifest file's text."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)


def files_in(folder: Path) -> list[Path]:
    """All files but the manifest, in order. Errors: Damaged when something is neither a plain file nor a folder."""
    files = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Damaged(f"{path.relative_to(folder)} is not a plain file")
        if path.is_file() and path != folder / MANIFEST:
            files.append(path)
    return files


def describe(folder: Path, step: int, known: Entries | None = None) -> Manifest:
    """The manifest of a folder's present contents. `known` = of files that other ranks have hashed."""
    return Manifest(step, entries(folder, files_in(folder), known))


def hash_share(folder: Path, ranks: Ranks) -> Entries:
    """This rank's share of a checkpoint's files; nothing where some cannot be read, as `verify` then says itself."""
    try:
        return entries(folder, ranks.shard(sorted(files_in(folder), key=lambda path: (path.stat().st_size, path))))
    except (OSError, Damaged):
        return {}


def verify(folder: Path, known: Entries | None = None) -> Manifest:
    """Compares every byte of a checkpoint with its manifest. `known` = what other ranks have found.

    Errors: Damaged, with the first difference.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise Damaged("it is not a folder")
    try:
        fs.require_regular(folder / MANIFEST)
        text = (folder / MANIFEST).read_bytes().decode()
        recorded = parse_object(text)
    except (OSError, ValueError) as error:
        raise Damaged(f"{MANIFEST}: {error}") from error
    if recorded.get("schema") != SCHEMA:
        raise Damaged(f"{MANIFEST} has schema {recorded.get('schema')!r}; this version reads {SCHEMA}")
    found = describe(folder, int(folder.name.removeprefix("step-")), known)
    if found.text() != text:
        raise Damaged(difference(recorded, found))
    return found


def difference(recorded: dict[str, Any], found: Manifest) -> str:
    """How a checkpoint differs from what its manifest says."""
    files = recorded.get("files")
    files = files if isinstance(files, dict) else {}
    for name in sorted(found.files.keys() | files.keys()):
        was, now = files.get(name), found.files.get(name)
        if now is None:
            return f"{name} is missing"
        if was is None:
            return f"{name} is not in the manifest"
        if was != now:
            return f"{name} has {now['bytes']} bytes and sha256 {now['sha256'][:12]}; the manifest says {was}"
    return f"{MANIFEST} was changed, or is that of another step than {found.step}"


def list_checkpoints(folder: Path) -> list[Path]:
    """The folders named as checkpoints, by step: `step-000009` before `step-000010`, whether they verify or not."""
    named = [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{6,}", path.name)]
    return sorted(named, key=lambda path: int(path.name.removeprefix("step-")))


def newest(folder: Path, reject: Callable[[Path, str], None], check: Callable[[Path], None]) -> Path | None:
    """The newest checkpoint for which `check` raises no `Damaged`; `reject` is called with each newer one, and why."""
    for path in reversed(list_checkpoints(folder)):
        try:
            check(path)
        except Damaged as error:
            reject(path, str(error))
        else:
            return path
    return None


def write(
    folder: Path, step: int, attempt: int, fill: Callable[[Path], None], known: Entries | None = None
) -> Manifest:
    """A new checkpoint: `fill` writes its files into the folder it is given. `known` = of those that several ranks have
    written and read back already.

    An existing checkpoint of this step is kept if it is equal, else renamed to `step-N.bad-ATTEMPT`.
    Errors: OSError when the disk refuses; Damaged when the checkpoint reads back differently. Other checkpoints are
    untouched then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder, (".tmp-*", ".del-*"))
    if known is None:
        require_room(folder)
    name = f"step-{step:06d}"
    temporary, target = folder / f".tmp-{name}-{attempt}", folder / name
    os.mkdir(temporary)
    try:
        fill(temporary)
        for path in files_in(temporary):
            fs.fsync(path)
        manifest = describe(temporary, step, known)
        (temporary / MANIFEST).write_text(manifest.text(), encoding="utf-8")
        fs.fsync(temporary / MANIFEST)
        for path in [p for p in temporary.rglob("*") if p.is_dir()]:
            fs.fsync(path)
        fs.fsync(temporary)
        if os.path.lexists(target):
            with suppress(Damaged):
                if verify(target) == manifest:
                    return manifest
            fs.rename(target, unused(folder, f"{name}.bad-{attempt}"))
        fs.rename(temporary, target)
    finally:
        if temporary.exists():
            fs.remove_tree(temporary)
    if verify(target, known) != manifest:
        raise Damaged("it reads back differently from what was written")
    return manifest


def unused(folder: Path, name: str) -> Path:
    """A path of this name, with a number appended if it is taken."""
    path, number = folder / name, 1
    while os.path.lexists(path):
        path, number = folder / f"{name}.{number}", number + 1
    return path


def require_room(folder: Path) -> None:
    """Errors: OSError (no space left) when the next checkpoint would hardly fit."""
    known = list_checkpoints(folder)
    if not known:
        return
    needed = int(ROOM * sum(p.stat().st_size for p in known[-1].rglob("*") if p.is_file() and not p.is_symlink()))
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < needed:
        raise OSError(errno.ENOSPC, f"{free} bytes are free; a checkpoint needs {needed}")


def rotate(folder: Path, keep: int, protected: set[int]) -> None:
    """Removes all but the newest `keep` checkpoints and those of the steps `protected`.

    Call it only after the newest has been verified (`write` does that).
    """
    for path in list_checkpoints(folder)[:-keep]:
        if int(path.name.removeprefix("step-")) not in protected:
            doomed = folder / f".del-{path.name}"
            fs.rename(path, doomed)
            fs.remove_tree(doomed)


def sweep(folder: Path, patterns: tuple[str, ...] = (".tmp-*", ".del-*", ".part-*")) -> None:
    """Removes what a crash left behind: unfinished and half-deleted checkpoints, and files of ranks for one."""
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            fs.remove_tree(path)
