"""All writing of run files goes through here: whole files by rename, logs by appending whole lines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gspo_cli.errors import ExitCode, GspoError


@contextmanager
def write_atomic(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write to; afterwards the file is fsynced and renamed to `path`, or removed on error.

    Errors: GspoError (exit code 6) when the disk refuses.
    """
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """A small text file, whole or not at all."""
    with write_atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_lines(path: Path, lines: list[str]) -> None:
    """Appends lines with one write. A write that the disk cuts short is taken back, so the file ends with a whole
    line.

    Errors: GspoError (exit code 6) when the disk refuses.
    """
    data = "".join(f"{line}\n" for line in lines).encode("utf-8")
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        try:
            written = file.write(data)
            if written != len(data):
                raise OSError(28, f"only {written} of {len(data)} bytes were written")
        except OSError as error:
            os.truncate(path, size)
            raise storage_error(path, error) from error


def storage_error(path: Path, error: OSError) -> GspoError:
    """A refused write as an error for the user."""
    return GspoError(
        f"cannot write {path}",
        f"{error.strerror or error}",
        "free some space or choose another folder with --out; what was logged so far is whole and readable",
        ExitCode.STORAGE,
    )
