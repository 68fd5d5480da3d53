"""sandlock (Landlock and seccomp, no namespaces): the second choice, where bubblewrap is forbidden.

A thin adapter: sandlock starts and confines, and nothing is readable unless it is listed. The limits of each process
are those of bubblewrap. `max_memory` is not used: it kills where a MemoryError is expected.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import re
import shutil
import signal
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from gspo_cli.sandbox.contract import Job, Limits, job_environment
from gspo_cli.sandbox.machine import Interpreter
from gspo_cli.sandbox.process import Process, ProcessSet

DENIED = ("memfd_create", "shmget", "mq_open")  # memory that no process maps
SET_CHILD_SUBREAPER = 36  # prctl: orphans among our descendants become our children
READABLE = ("/usr", "/lib", "/lib64", "/bin", "/dev/urandom", "/dev/null", "/etc/passwd", "/etc/ld.so.cache")


class Confined:
    """A `Child` that sandlock started."""

    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    def __init__(self, started: Any) -> None:
        self._started, self.pid = started, int(started.pid)
        self.stdin, self.stdout, self.stderr = started.stdin, started.stdout, started.stderr

    def kill(self) -> None:
        self._started.kill()

    def wait(self) -> int:
        done = self._started.wait()
        return int(done.exit_code) if done.signal < 0 else 128 + int(done.signal)


class Sandlock:
    """A `Sandbox` of sandlock."""

    kind = "sandlock"

    def __init__(self, interpreter: Interpreter, limits: Limits) -> None:
        self.interpreter, self.limits = interpreter, limits
        self._sandlock: Any = importlib.import_module("sandlock")
        self._starting = threading.Lock()
        self._running = ProcessSet(limits.memory, self._end_orphans)
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def start(self, job: Job) -> Process:
        folder = Path(tempfile.mkdtemp(prefix="gspo-job-"))
        scratch, site = folder / "scratch", folder / "site"
        scratch.mkdir()
        site.mkdir()
        job.write(folder)
        libraries = self.interpreter.libraries()
        for library in libraries:
            (site / library.name).symlink_to(library)
        readable = (*READABLE, str(self.interpreter.prefix), str(folder), *map(str, libraries))
        box = self._sandlock.Sandbox(
            fs_readable=[path for path in readable if Path(path).exists()],
            fs_writable=[str(scratch), "/dev/null"],
            fs_denied=[str(p) for p in self.interpreter.hidden],
            cwd=str(scratch),
            clean_env=True,
            env=job_environment(str(site)),
            extra_deny_syscalls=DENIED,
            max_processes=self.limits.processes,
        )
        piped = self._sandlock.StdioMode.PIPED
        command = job.command(self.limits, self.interpreter, str(folder))
        with self._starting:
            started = box.popen(command, piped, piped, piped)
            return self._running.add(
                Confined(started),
                lambda: shutil.rmtree(folder, ignore_errors=True),
                lambda family: stored_bytes(scratch, family, self.limits.scratch) > self.limits.scratch,
            )

    def _end_orphans(self) -> None:
        """Kill the processes of programs whose parent has ended: they come to us, and nobody counts what they hold."""
        with self._starting:
            known = {process.pid for process in self._running.running()}
            for thread in os.listdir("/proc/self/task"):
                for pid in _numbers(f"/proc/self/task/{thread}/children"):
                    if pid not in known and _filters(pid) > _filters(os.getpid()):
                        with suppress(ProcessLookupError, ChildProcessError):
                            os.kill(pid, signal.SIGKILL)
                            os.waitpid(pid, 0)

    def facts(self) -> dict[str, object]:
        return {
            "sandbox": self.kind,
            "sandbox_version": self._sandlock.__version__,
            "nested_userns": False,
            "process_limit": True,
            "process_limit_by": "sandlock",
        }

    def close(self) -> None:
        self._running.kill_all()


def _numbers(path: str) -> list[int]:
    with suppress(OSError):
        return list(map(int, Path(path).read_text(encoding="ascii").split()))
    return []


def _filters(pid: int) -> int:
    """How many seccomp filters bind a process: more than bind us if sandlock started it."""
    with suppress(OSError):
        found = re.search(r"^Seccomp_filters:\s+(\d+)$", Path(f"/proc/{pid}/status").read_text("utf-8"), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0


def stored_bytes(folder: Path, family: list[int], enough: int) -> int:
    """Bytes of the files in a folder, deleted ones included that a process still holds open; counts to about `enough`.

    A file counts at least a page, for many empty files fill a disk too.
    """
    total, seen = 0, set[int]()

    def add(facts: os.stat_result) -> None:
        nonlocal total
        if facts.st_ino not in seen:
            seen.add(facts.st_ino)
            total += max(facts.st_blocks * 512, 4096)

    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(OSError):
                add(os.lstat(os.path.join(parent, name)))
        if total > enough:
            return total
    for pid in family:
        with suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{descriptor}"
                with suppress(OSError):
                    if os.readlink(path).endswith(" (deleted)"):
                        add(os.stat(path))
    return total


def is_usable() -> bool:
    """Whether sandlock is installed and this kernel is new enough for it."""
    if importlib.util.find_spec("sandlock") is None:
        return False
    sandlock = importlib.import_module("sandlock")
    return bool(sandlock.landlock_abi_version() >= sandlock.min_landlock_abi())
