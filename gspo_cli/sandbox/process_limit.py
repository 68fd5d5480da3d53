"""A limit on the number of processes that holds for root too.

The kernel's per-user limit (RLIMIT_NPROC) does not bind root. So root starts candidates in a pids cgroup where it may
make one, else as the user `nobody` where that user can read the interpreter, else without a limit, which is recorded.
"""

from __future__ import annotations

import collections
import itertools
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NOBODY = "65534"
OVERHEAD = 4  # bubblewrap's own processes and the launcher
CGROUPS = Path("/sys/fs/cgroup")
NUMBERS = itertools.count()  # of this process: several sandboxes may be open at once


@dataclass(frozen=True)
class Group:
    """Where a program's processes are counted."""

    folder: str = ""
    leave: Callable[[], None] = lambda: None


class ProcessLimit:
    """The per-user limit alone: enough for an ordinary user, none for root."""

    prefix: tuple[str, ...] = ()
    """What stands before the sandbox's command."""

    def __init__(self, holds: bool, how: str) -> None:
        self.holds, self.how = holds, how

    def enter(self) -> Group:
        """A group for one program."""
        return Group()

    def close(self) -> None:
        """Removes what was made."""


class OtherUser(ProcessLimit):
    """Candidates run as `nobody`, whom the per-user limit binds."""

    prefix = ("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--")

    def __init__(self) -> None:
        super().__init__(True, "rlimit as nobody")


class PidsCgroup(ProcessLimit):
    """A cgroup of its own for each program, with `pids.max`."""

    def __init__(self, parent: Path, processes: int) -> None:
        super().__init__(True, "pids cgroup")
        self.parent, self.processes = parent, processes
        self._ended: collections.deque[Path] = collections.deque()
        self._remove_stale()

    def enter(self) -> Group:
        """A new cgroup: an ended program still counts in its own until the system's init has taken note of it."""
        folder = self.parent / f"gspo-{os.getpid()}-{next(NUMBERS)}"
        folder.mkdir()
        (folder / "pids.max").write_text(str(self.processes + OVERHEAD))
        return Group(str(folder), lambda: self._leave(folder))

    def _leave(self, folder: Path) -> None:
        """Removes it, and those of earlier programs: the processes of a killed one end a moment after it."""
        self._ended.append(folder)
        for _ in range(len(self._ended)):
            with suppress(IndexError):
                oldest = self._ended.popleft()
                try:
                    oldest.rmdir()
                except OSError:
                    self._ended.append(oldest)

    def close(self) -> None:
        """Removes the cgroups, waiting a little for the processes of killed programs to end."""
        deadline = time.monotonic() + 1.0
        while self._ended and time.monotonic() < deadline:
            self._leave(self._ended.popleft())
            time.sleep(0.002)

    def _remove_stale(self) -> None:
        """Empty cgroups of processes that are gone (killed, they could not remove them)."""
        for folder in self.parent.glob("gspo-*-*"):
            if not Path("/proc", folder.name.split("-")[1]).exists():
                with suppress(OSError):
                    folder.rmdir()


def find_process_limit(processes: int, prefix: Path) -> ProcessLimit:
    """The strongest limit that this machine allows; `prefix` is the interpreter's folder."""
    if os.geteuid() != 0:
        return ProcessLimit(True, "rlimit")
    parent = _writable_pids_cgroup()
    if parent is not None:
        return PidsCgroup(parent, processes)
    if shutil.which("setpriv") and readable_for_others(prefix):
        return OtherUser()
    return ProcessLimit(False, "none: root, no writable pids cgroup, interpreter not readable for others")


def readable_for_others(path: Path) -> bool:
    """Whether any user may enter `path`."""
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in (path, *path.parents))


def _writable_pids_cgroup() -> Path | None:
    """A folder in which a child with `pids.max` can be made (cgroup version 1, or 2 where pids is delegated)."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        roots = {"pids": CGROUPS / "pids", "": CGROUPS}
        if controllers not in roots:
            continue
        parent = roots[controllers] / path.lstrip("/")
        trial = parent / f"gspo-{os.getpid()}-trial"
        with suppress(OSError):
            trial.mkdir()
            try:
                (trial / "pids.max").write_text("10")  # version 2: absent unless the parent delegates pids
                return parent
            finally:
                trial.rmdir()
    return None
