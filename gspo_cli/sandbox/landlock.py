"""Sandlock (Landlock and seccomp, no namespaces): the second choice, where bubblewrap is forbidden.

Nothing is readable unless it is listed. A thin adapter: sandlock starts and confines, our limits of each process are
the same as in bubblewrap. `max_memory` is left alone: it kills where a MemoryError is expected.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import IO, Any

from gspo_cli.sandbox.bwrap import PASSWD, inner
from gspo_cli.sandbox.contract import Job, Limits
from gspo_cli.sandbox.interpreter import Interpreter
from gspo_cli.sandbox.process import Process
from gspo_cli.sandbox.running import Running

READABLE = ("/usr", "/lib", "/lib64", "/bin", "/dev/urandom", "/dev/null", "/etc/passwd", "/etc/ld.so.cache")


class Confined:
    """A program that sandlock started."""

    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    def __init__(self, started: Any) -> None:
        self._started, self.pid = started, int(started.pid)
        self.stdin, self.stdout, self.stderr = started.stdin, started.stdout, started.stderr

    def kill(self) -> None:
        """See `process.Child`."""
        self._started.kill()

    def wait(self) -> int:
        """See `process.Child`."""
        done = self._started.wait()
        return int(done.exit_code) if done.signal < 0 else 128 + int(done.signal)


class Landlock:
    """Starts programs under sandlock."""

    kind = "sandlock"

    def __init__(self, interpreter: Interpreter, limits: Limits) -> None:
        self.interpreter, self.limits = interpreter, limits
        self._sandlock: Any = importlib.import_module("sandlock")
        self._running = Running()

    def start(self, job: Job) -> Process:
        """See `contract.Sandbox`."""
        folder = Path(tempfile.mkdtemp(prefix="gspo-job-"))
        scratch, site = folder / "scratch", folder / "site"
        scratch.mkdir()
        site.mkdir()
        job.write(folder)
        (folder / "passwd").write_bytes(PASSWD)
        for library in self.interpreter.libraries():
            (site / library.name).symlink_to(library)
        prefix = self.interpreter.prefix
        box = self._sandlock.Sandbox(
            fs_readable=[
                p for p in (*READABLE, str(prefix), str(folder), *map(str, self.interpreter.libraries()))
                if Path(p).exists()
            ],
            fs_writable=[str(scratch), "/dev/null"],
            fs_denied=[str(p) for p in self.interpreter.hidden],
            cwd=str(scratch),
            clean_env=True,
            env={"PATH": "/usr/bin", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(site)},
            max_processes=self.limits.processes,
        )  # fmt: skip
        piped = self._sandlock.StdioMode.PIPED
        started = box.popen(inner(job, self.limits, self.interpreter, str(folder)), piped, piped, piped)
        return self._running.add(Confined(started), lambda: shutil.rmtree(folder, ignore_errors=True))

    def facts(self) -> dict[str, object]:
        """See `contract.Sandbox`."""
        return {
            "sandbox": self.kind,
            "sandbox_version": self._sandlock.__version__,
            "nested_userns": False,
            "process_limit": True,
            "process_limit_by": "sandlock",
        }

    def close(self) -> None:
        """See `contract.Sandbox`."""
        self._running.kill_all()


def is_usable() -> bool:
    """Whether sandlock is installed and this kernel is new enough for it."""
    if importlib.util.find_spec("sandlock") is None:
        return False
    sandlock = importlib.import_module("sandlock")
    return bool(sandlock.landlock_abi_version() >= sandlock.min_landlock_abi())
