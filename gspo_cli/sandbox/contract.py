"""What a sandbox is: it starts one Python program at a time and reports what it enforces."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from gspo_cli.sandbox.machine import Interpreter
from gspo_cli.sandbox.process import Process, ProcessSet

MIB = 1 << 20
START_S = 20.0
"""Seconds that a sandbox may take until its program runs; only an overloaded machine comes near."""


ADDRESS_SPACE = 2048 * MIB
"""Of each process; so for open files, file size and CPU time."""
MEMORY = 2048 * MIB
"""Of all processes of a program together."""
PROCESSES, OPEN_FILES, FILE_SIZE = 32, 64, 64 * MIB
"""Processes of the whole program, threads included."""
SCRATCH = 64 * MIB
"""All files of the whole program, wherever it may write."""


@dataclass(frozen=True)
class Job:
    """A Python program to start."""

    script: str
    """Which of `files` runs."""
    files: dict[str, bytes] = field(repr=False)
    """Name -> content; read-only for the program, in a folder that holds nothing else."""
    flags: tuple[str, ...] = ()
    """Of the interpreter."""
    arguments: tuple[str, ...] = ()
    announce: bool = False
    """Print a line `ready` to stdout before the interpreter starts. It shows that the sandbox works, for programs
    that have no protocol of their own."""
    cpu_s: int = 20
    """CPU seconds after which the kernel ends the process: a backstop, the grader's clock comes first."""

    def command(self, interpreter: Interpreter, folder: str) -> list[str]:
        """The command that runs inside the sandbox: set the limits of each process, then start the interpreter.

        The limits are set inside because outside the process limit counts every process of the user.
        """
        announce = ["/bin/sh", "-c", 'echo ready; exec "$@"', "sh"] if self.announce else []
        return [
            "/usr/bin/prlimit", f"--as={ADDRESS_SPACE}", f"--nproc={PROCESSES}",
            f"--fsize={FILE_SIZE}", f"--cpu={self.cpu_s}", f"--nofile={OPEN_FILES}", "--core=0", "--",
            *announce, str(interpreter.executable), *self.flags, f"{folder}/{self.script}", *self.arguments,
        ]  # fmt: skip


def job_environment(site: str) -> dict[str, str]:
    """All environment variables of a job; `site` is the folder that makes numpy importable."""
    return {"PATH": "/usr/bin", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": site}


class Sandbox(ABC):
    """The seam between graders and isolation."""

    kind: str
    """`bwrap` or `unsafe-local`."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self._running = ProcessSet(MEMORY)

    @abstractmethod
    def start(self, job: Job) -> Process:
        """Start a program. Its output shows whether that worked.

        Errors: OSError when not even the sandbox's own program starts.
        """

    @abstractmethod
    def facts(self) -> dict[str, object]:
        """What is enforced, for summaries: kind, versions, `process_limit`, `nested_userns`, ..."""

    def close(self) -> None:
        """Kill every program that still runs."""
        self._running.kill_all()
