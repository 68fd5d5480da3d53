"""The user as whom programs run, and so the limit on their processes.

Root keeps rights within a user namespace: the files of /proc belong to it, and the kernel's limit on a user's processes
(RLIMIT_NPROC) does not bind it. So where we are root, programs run as `nobody`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

NOBODY = 65534
_ROW_OF_ROOT = ["0", "0"]  # of /proc/self/uid_map; in a container without root's rights, its 0 is another user


class ProcessLimit:
    """Programs run as the user that we are, whom the per-user limit binds."""

    mechanism = "rlimit"
    prefix: tuple[str, ...] = ()
    """Put before the sandbox's command."""

    def place(self, folder: Path) -> Path:
        """Where the user finds a folder."""
        return folder


class OtherUser(ProcessLimit):
    """Programs run as `nobody`. Folders that it cannot reach, such as an interpreter in root's home, are mounted in
    front of the sandbox where it can."""

    mechanism = "rlimit as nobody"

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        hidden = [folder for folder in folders if not _others_reach(folder)]
        self._places = {folder: Path(f"/tmp/{number}") for number, folder in enumerate(hidden)}
        binds = [part for folder, place in self._places.items() for part in ("--ro-bind", str(folder), str(place))]
        mounts = ("bwrap", "--dev-bind", "/", "/", "--tmpfs", "/tmp", *binds, "--") if binds else ()
        user = str(NOBODY)
        self.prefix = (*mounts, "setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--")

    def place(self, folder: Path) -> Path:
        return self._places.get(folder, folder)


def find_process_limit(folders: Iterable[Path]) -> ProcessLimit:
    """How to start programs that read `folders`."""
    rows = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
    is_root = os.geteuid() == 0 and any(row.split()[:2] == _ROW_OF_ROOT for row in rows)
    return OtherUser(folders) if is_root else ProcessLimit()


def _others_reach(folder: Path) -> bool:
    return all(parent.stat().st_mode & 1 for parent in folder.parents) and folder.stat().st_mode & 5 == 5
