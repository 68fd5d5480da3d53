"""A limit on the number of processes that also holds for root.

The kernel's per-user limit (RLIMIT_NPROC) does not bind root. Root therefore starts each program in its own pids cgroup
if it may create one, else as the user `nobody` if that user can read the interpreter, else without a limit. Which of
these applies is recorded.
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
NUMBERS = itertools.count()  # shared, because a process may open several sandboxes


@dataclass(frozen=True)
class Membership:
    """One program's place in the limit."""

    cgroup: str = ""
    """The folder of its cgroup, if it has one."""
    leave: Callable[[], None] = lambda: None


class ProcessLimit:
    """The per-user limit alone: it binds an ordinary user, not root."""

    prefix: tuple[str, ...] = ()
    """Put before the sandbox's command."""

    def __init__(self, enforced: bool, mechanism: str) -> None:
        self.enforced, self.mechanism = enforced, mechanism

    def enter(self) -> Membership:
        """A place for one program."""
        return Membership()

    def close(self) -> None:
        """Remove what was created."""


class OtherUser(ProcessLimit):
    """Programs run as `nobody`, whom the per-user limit binds."""

    prefix = ("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--")

    def __init__(self) -> None:
        super().__init__(True, "rlimit as nobody")


class PidsCgroup(ProcessLimit):
    """One cgroup per program, with `pids.max`."""

    def __init__(self, parent: Path, processes: int) -> None:
        super().__init__(True, "pids cgroup")
        self.parent, self.processes = parent, processes
        self._to_remove: collections.deque[Path] = collections.deque()
        for folder in self.parent.glob("gspo-*-*"):  # left by processes that were killed
            if not Path("/proc", folder.name.split("-")[1]).exists():
                with suppress(OSError):
                    folder.rmdir()

    def enter(self) -> Membership:
        """A new cgroup. None is reused: an ended program still counts in its own until init has reaped it."""
        folder = self.parent / f"gspo-{os.getpid()}-{next(NUMBERS)}"
        folder.mkdir()
        (folder / "pids.max").write_text(str(self.processes + OVERHEAD))
        return Membership(str(folder), lambda: self._remove(folder))

    def _remove(self, folder: Path) -> None:
        """Remove it and earlier ones that were still busy: the processes of a killed program end a moment later."""
        self._to_remove.append(folder)
        for _ in range(len(self._to_remove)):
            with suppress(IndexError):
                oldest = self._to_remove.popleft()
                try:
                    oldest.rmdir()
                except OSError:
                    self._to_remove.append(oldest)

    def close(self) -> None:
        """Remove all cgroups, waiting until the processes of killed programs have ended: ten seconds at most, which
        only a very busy machine needs."""
        deadline = time.monotonic() + 10.0
        while self._to_remove and time.monotonic() < deadline:
            self._remove(self._to_remove.popleft())
            time.sleep(0.002)


def find_process_limit(processes: int, prefix: Path) -> ProcessLimit:
    """The strongest limit that this machine allows; `prefix` is the interpreter's folder."""
    if os.geteuid() != 0:
        return ProcessLimit(True, "rlimit")
    parent = _writable_pids_cgroup()
    if parent is not None:
        return PidsCgroup(parent, processes)
    others_can_read = all(folder.stat().st_mode & 0o005 == 0o005 for folder in (prefix, *prefix.parents))
    if shutil.which("setpriv") and others_can_read:
        return OtherUser()
    return ProcessLimit(False, "none: root, no writable pids cgroup, interpreter not readable for others")


def _writable_pids_cgroup() -> Path | None:
    """A folder in which a child with `pids.max` can be created (cgroup v1, or v2 where pids is delegated)."""
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
                (trial / "pids.max").write_text("10")  # v2: absent unless the parent delegates pids
                return parent
            finally:
                trial.rmdir()
    return None
