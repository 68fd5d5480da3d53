"""Checksums of a run's or a study's files in `sealed.json`, which show any later change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gspo_cli.runlog.fs import write_text
from gspo_cli.runlog.log import canonical

CHECKSUMS = "sealed.json"
MUTABLE = (CHECKSUMS, "log.txt", "invalidated.json", "run.lock", "heartbeat.json")
"""Files of a run that may change after its end."""

Entries = dict[str, dict[str, Any]]


def write_run_checksums(run: Path) -> None:
    """Record the checksum of every file that a run has written, replacing earlier records.

    Errors: GspoError (exit code 6) if the disk refuses.
    """
    files = (p for p in sorted(run.rglob("*")) if p.is_file() and p.name not in MUTABLE)
    write_text(run / CHECKSUMS, _text(entries(run, (p for p in files if not p.name.startswith(".tmp-")))))


def add_checksums(folder: Path, paths: Iterable[Path]) -> None:
    """Add or renew the checksums of some files under `folder`. Errors: GspoError (exit code 6) if the disk refuses."""
    write_text(folder / CHECKSUMS, _text(read_checksums(folder) | entries(folder, paths)))


def read_checksums(folder: Path) -> Entries:
    """The recorded checksums; empty if there are none or the record was altered (see `checksums_intact`)."""
    record = _read(folder)
    return record["files"] if record else {}


def checksums_intact(folder: Path) -> bool:
    """Whether the record itself is unchanged; True if there is none."""
    return not (folder / CHECKSUMS).exists() or _read(folder) is not None


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        text = (folder / CHECKSUMS).read_text(encoding="utf-8")
        record = json.loads(text)
        return record if text == _text(record["files"]) else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def entries(folder: Path, paths: Iterable[Path]) -> Entries:
    """Size and sha256 of these files, by their path within `folder`."""
    return {p.relative_to(folder).as_posix(): {"bytes": p.stat().st_size, "sha256": sha256_of(p)} for p in paths}


def _text(files: Entries) -> str:
    own = hashlib.sha256(canonical(files).encode()).hexdigest()
    return json.dumps({"files": files, "sha256": own}, indent=1, sort_keys=True) + "\n"
