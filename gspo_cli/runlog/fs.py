"""All changes of run files go through here: whole files by rename, logs by appending whole lines.

Each change is one call of `os`, in an order that a crash at any point survives; tests stand at this seam and kill,
tear or refuse each call.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gspo_cli.errors import ExitCode, GspoError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a full disk, a used-up quota and a limit on file sizes say."""


@contextmanager
def write_atomic(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write to; afterwards the file is fsynced and renamed to `path`, or removed on error.

    Errors: GspoError (exit code 6) when the disk refuses.
    """
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        fsync(temporary)
        os.replace(temporary, path)
        fsync(path.parent)
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        if temporary.exists():
            os.unlink(temporary)


def write_text(path: Path, text: str) -> None:
    """A small text file, whole or not at all."""
    with write_atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_lines(path: Path, lines: list[str]) -> int:
    """Appends lines with one write and gives their number of bytes. A write that the disk cuts short is taken back, so
    the file ends with a whole line.

    Errors: GspoError (exit code 6) when the disk refuses, or when the path is a symbolic link.
    """
    data = "".join(f"{line}\n" for line in lines).encode("utf-8")
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(file).st_size
            try:
                written = os.write(file, data)
                if written != len(data):
                    raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes were written")
            except OSError:
                os.ftruncate(file, size)
                raise
        finally:
            os.close(file)
    except OSError as error:
        raise storage_error(path, error) from error
    return len(data)


def fsync(path: Path) -> None:
    """Forces a file, or the entries of a folder, to the disk."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def rename(source: Path, target: Path) -> None:
    """Gives a file or folder its name, for good. The target must not exist: an empty folder would be replaced in
    silence.

    Errors: FileExistsError.
    """
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "it exists already", str(target))
    os.rename(source, target)
    fsync(target.parent)


def truncate(path: Path, size: int) -> None:
    """Cuts a file to its first `size` bytes, for good."""
    os.truncate(path, size)
    fsync(path)


def remove_tree(folder: Path) -> None:
    """Deletes a folder with all it holds; links in it are deleted, never followed."""
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:
            os.unlink(entry)
    os.rmdir(folder)


def refuse_links(folder: Path) -> None:
    """Errors: GspoError (exit code 6) when a run folder is or holds a symbolic link, which could lead anywhere."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            raise GspoError(
                f"{path} is a symbolic link",
                "a run folder holds plain files only; a link could lead to files outside it",
                "replace it with the file it points to, or remove it",
                ExitCode.STORAGE,
            )


def storage_error(path: Path, error: OSError) -> GspoError:
    """A refused write as an error for the user."""
    return GspoError(
        f"cannot write {path}",
        f"{error.strerror or error}",
        "free some space or choose another folder with --out; what was logged so far is whole and readable",
        ExitCode.STORAGE,
    )
