"""A checkpoint's manifest: every file with its size and sha256, written last, checked before anything is loaded."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gspo_cli.runlog.strict_json import parse_object

SCHEMA = 1
NAME = "MANIFEST.json"


class Damaged(Exception):
    """A checkpoint that is not what was saved; the text says why."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds."""

    step: int
    files: dict[str, dict[str, Any]]
    """Path within the checkpoint -> `bytes` and `sha256`."""
    schema: int = SCHEMA

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        return sum(file["bytes"] for file in self.files.values())

    def text(self) -> str:
        """As it is written."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)


def sha256(path: Path) -> str:
    """Of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_in(folder: Path) -> list[Path]:
    """All files but the manifest, in order.

    Errors: Damaged when something is neither a plain file nor a folder.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Damaged(f"{path.relative_to(folder)} is no plain file")
        if path.is_file() and path != folder / NAME:
            found.append(path)
    return found


def describe(folder: Path, step: int) -> Manifest:
    """The manifest of a folder as it is."""
    return Manifest(
        step,
        {
            path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
            for path in files_in(folder)
        },
    )


def verify(folder: Path) -> Manifest:
    """Compares every byte of a checkpoint with its manifest, and gives that.

    Errors: Damaged, with the first difference.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise Damaged("it is no folder")
    manifest = read(folder / NAME)
    if manifest.step != int(folder.name.removeprefix("step-")):
        raise Damaged(f"the manifest is that of step {manifest.step}")
    found = {path.relative_to(folder).as_posix(): path for path in files_in(folder)}
    for names, fault in ((manifest.files.keys() - found, "missing"), (found.keys() - manifest.files, "not in it")):
        if names:
            raise Damaged(f"{min(names)} is {fault}" + (" the manifest" if fault == "not in it" else ""))
    for name, path in found.items():
        if path.stat().st_size != manifest.files[name]["bytes"]:
            raise Damaged(f"{name} has {path.stat().st_size} bytes, not {manifest.files[name]['bytes']}")
    for name, path in found.items():
        if sha256(path) != manifest.files[name]["sha256"]:
            raise Damaged(f"{name} was changed (sha256)")
    return manifest


def read(path: Path) -> Manifest:
    """Errors: Damaged when it is no manifest of this schema, or names a path outside the checkpoint."""
    try:
        text = path.read_bytes().decode()
        record = parse_object(text)
    except (OSError, ValueError) as error:
        raise Damaged(f"{NAME}: {error}") from error
    if record.get("schema") != SCHEMA:
        raise Damaged(f"{NAME} has schema {record.get('schema')!r}; this version reads {SCHEMA}")
    files = record.get("files")
    if record.keys() != {"schema", "step", "files"} or type(record["step"]) is not int or not isinstance(files, dict):
        raise Damaged(f"{NAME} is no manifest")
    for name, file in files.items():
        if os.path.isabs(name) or ".." in Path(name).parts:
            raise Damaged(f"{NAME} names {name}, which is outside the checkpoint")
        if not isinstance(file, dict) or (type(file.get("bytes")), type(file.get("sha256"))) != (int, str):
            raise Damaged(f"{NAME} does not describe {name}")
    manifest = Manifest(record["step"], files)
    if manifest.text() != text:
        raise Damaged(f"{NAME} was changed")
    return manifest
