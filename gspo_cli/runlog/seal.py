"""Seals: the sha256 of the files of a run or study, so that any byte altered afterwards is found and named.

`sealed.json` is written when a run ends, and extended by what adds files later (evaluations, reports). It shows edits
and losses, not a rewrite of the whole folder by someone who also writes the seal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gspo_cli.runlog.fs import write_text
from gspo_cli.runlog.log import canonical

FILE = "sealed.json"
GROWING = (FILE, "log.txt", "invalidated.json", "run.lock", "heartbeat.json")
"""Files of a run that may be written after its end."""

Entries = dict[str, dict[str, Any]]


def seal_run(run: Path) -> None:
    """Seals every file that a run has written so far, in place of an earlier seal.

    Errors: GspoError (exit code 6) when the disk refuses.
    """
    files = (p for p in sorted(run.rglob("*")) if p.is_file() and p.name not in GROWING)
    _write(run, _entries(run, (p for p in files if not p.name.startswith(".tmp-"))))


def seal_files(folder: Path, paths: Iterable[Path]) -> None:
    """Adds files under `folder` to its seal, or renews their entries.

    Errors: GspoError (exit code 6) when the disk refuses.
    """
    _write(folder, read_seal(folder) | _entries(folder, paths))


def read_seal(folder: Path) -> Entries:
    """What a folder's seal says; nothing if there is none, or none that is whole (`seal_is_whole` tells)."""
    found = _read(folder)
    return found["files"] if found else {}


def seal_is_whole(folder: Path) -> bool:
    """Whether the seal is what was written; true if there is none."""
    return not (folder / FILE).exists() or _read(folder) is not None


def sha256_of(path: Path) -> str:
    """Of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        text = (folder / FILE).read_text(encoding="utf-8")
        found = json.loads(text)
        return found if text == _text(found["files"]) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _entries(folder: Path, paths: Iterable[Path]) -> Entries:
    return {p.relative_to(folder).as_posix(): {"bytes": p.stat().st_size, "sha256": sha256_of(p)} for p in paths}


def _write(folder: Path, entries: Entries) -> None:
    write_text(folder / FILE, _text(entries))


def _text(entries: Entries) -> str:
    own = hashlib.sha256(canonical(entries).encode()).hexdigest()
    return json.dumps({"files": entries, "sha256": own}, indent=1, sort_keys=True) + "\n"
