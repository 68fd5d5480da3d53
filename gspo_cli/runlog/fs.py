"""Every change to run files goes through here: whole files by rename, logs by appending whole lines.

Each change is a single `os` call, in an order that survives a crash at any point. Tests interpose here to kill, tear
or refuse each call.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gspo_cli.errors import ExitCode, GspoError


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Turns what the disk refuses within the context into a GspoError (exit code 6) that names the path."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, error) from error


@contextmanager
def write_atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, then fsync the file and rename it to `path`; on error, remove it.

    Errors: GspoError (exit code 6) if the disk refuses.
    """
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        with refusals(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if temporary.is_symlink():  # writing would follow it
                os.unlink(temporary)
            yield temporary
            fsync(temporary)
            os.replace(temporary, path)
            fsync(path.parent)
    finally:
        if temporary.exists():
            os.unlink(temporary)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with write_atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_lines(path: Path, lines: list[str]) -> int:
    """Append lines in one write and return their size in bytes.

    A write that the disk cuts short is undone, so the file always ends with a whole line.
    Errors: GspoError (exit code 6) if the disk refuses, or if the path is a symbolic link.
    """
    data = "".join(f"{line}\n" for line in lines).encode("utf-8")
    with refusals(path):
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
    return len(data)


def fsync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def rename(source: Path, target: Path) -> None:
    """Rename durably. Errors: FileExistsError if the target exists; `os.rename` would replace an empty folder."""
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "already exists", str(target))
    os.rename(source, target)
    fsync(target.parent)


def remove(path: Path) -> None:
    """Remove a file. Errors: GspoError (exit code 6) if the disk refuses."""
    with refusals(path):
        os.unlink(path)


def truncate(path: Path, size: int) -> None:
    """Cut a file to its first `size` bytes, durably. Errors: GspoError (exit code 6) if the disk refuses."""
    with refusals(path):
        os.truncate(path, size)
        fsync(path)


def remove_tree(folder: Path) -> None:
    """Delete a folder and its contents. Links are deleted, never followed."""
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:
            os.unlink(entry)
    os.rmdir(folder)


def refuse_link(path: Path) -> None:
    """Errors: GspoError (exit code 6) if a path within a run or study is a symbolic link."""
    if path.is_symlink():
        raise GspoError(
            f"{path} is a symbolic link",
            "runs and studies may hold only plain files and folders: a link could lead outside them",
            "replace the link with what it points to, or remove it",
            ExitCode.STORAGE,
        )


def refuse_links(folder: Path) -> None:
    """Errors: GspoError (exit code 6) if a run folder is or contains a symbolic link, or anything without an end. In
    its checkpoints, the latter only makes the one that holds it unusable."""
    for path in (folder, *folder.rglob("*")):
        refuse_link(path)
        if not (path.is_file() or path.is_dir() or folder / "checkpoints" in path.parents):
            message, why = f"{path} is no ordinary file", "a pipe or device would be waited for, or has no end"
            raise GspoError(message, why, "remove it, or restore it from a copy", ExitCode.STORAGE)


def require_regular(path: Path) -> None:
    """Errors: OSError for a pipe, device or socket, which would be waited for, or has no end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no ordinary file", str(path))


def storage_error(path: Path, error: OSError) -> GspoError:
    """A refused write as a user error."""
    return GspoError(
        f"cannot write {path}",
        f"{error.strerror or error}",
        "free some disk space or choose another folder with --out; everything logged so far is intact",
        ExitCode.STORAGE,
    )
