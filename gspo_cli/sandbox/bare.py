"""No isolation: the program runs as us, with limits on its resources and an empty environment.

Only for `--unsafe-local`. It reads every file that we can read, reaches the network and may leave processes behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from gspo_cli.sandbox.bwrap import inner
from gspo_cli.sandbox.contract import Job, Limits
from gspo_cli.sandbox.interpreter import Interpreter
from gspo_cli.sandbox.process import Process, Spawned
from gspo_cli.sandbox.running import Running


class Bare:
    """Starts programs without a sandbox."""

    kind = "unsafe-local"

    def __init__(self, interpreter: Interpreter, limits: Limits) -> None:
        self.interpreter, self.limits = interpreter, limits
        self._running = Running()

    def start(self, job: Job) -> Process:
        """See `contract.Sandbox`."""
        folder = Path(tempfile.mkdtemp(prefix="gspo-job-"))
        scratch = folder / "scratch"
        scratch.mkdir()
        job.write(folder)
        site = self.interpreter.numpy.parent if self.interpreter.numpy else folder
        environment = {"PATH": "/usr/bin", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(site)}
        popen = subprocess.Popen(
            inner(job, self.limits, self.interpreter, str(folder)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment | {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}, cwd=scratch,
            start_new_session=True,
        )  # fmt: skip
        return self._running.add(Spawned(popen), lambda: shutil.rmtree(folder, ignore_errors=True))

    def facts(self) -> dict[str, object]:
        """See `contract.Sandbox`."""
        return {"sandbox": self.kind, "process_limit": False, "nested_userns": True}

    def close(self) -> None:
        """See `contract.Sandbox`."""
        self._running.kill_all()
