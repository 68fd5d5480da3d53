"""Bubblewrap: namespaces without privileges, one command line a program (github.com/containers/bubblewrap)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from gspo_cli.sandbox.contract import Job, Limits
from gspo_cli.sandbox.interpreter import Interpreter
from gspo_cli.sandbox.process import Process, Spawned
from gspo_cli.sandbox.process_limit import ProcessLimit
from gspo_cli.sandbox.running import Running

JOB, SITE = "/opt/job", "/opt/site"
PASSWD = b"candidate:x:65534:65534::/tmp:/bin/false\n"
# The kernel ends candidates before us when memory runs out; the cgroup, if any, counts all that follow.
LAUNCH = 'echo 1000 > /proc/self/oom_score_adj; [ -z "$0" ] || echo $$ > "$0"/cgroup.procs || exit 1; exec "$@"'


class Bubblewrap:
    """Starts programs under bubblewrap."""

    kind = "bwrap"

    def __init__(self, interpreter: Interpreter, limits: Limits, process_limit: ProcessLimit) -> None:
        self.interpreter, self.limits, self.process_limit = interpreter, limits, process_limit
        self.no_nested_userns = "--disable-userns" in _answer("--help")
        self._running = Running()

    def start(self, job: Job) -> Process:
        """See `contract.Sandbox`."""
        descriptors = {path: _in_memory(content) for path, content in self._files(job).items()}
        group = self.process_limit.enter()
        try:
            popen = subprocess.Popen(
                ["/bin/sh", "-c", LAUNCH, group.folder, *self.process_limit.prefix, *self.command(job, descriptors)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env={"PATH": os.defpath}, pass_fds=tuple(descriptors.values()), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            group.leave()
            raise
        finally:
            for descriptor in descriptors.values():
                os.close(descriptor)
        return self._running.add(Spawned(popen), group.leave)

    def _files(self, job: Job) -> dict[str, bytes]:
        return {f"{JOB}/{name}": content for name, content in job.files.items()} | {"/etc/passwd": PASSWD}

    def command(self, job: Job, descriptors: dict[str, int]) -> list[str]:
        """The whole command line, `descriptors` holding the content of each file."""
        nested = ["--disable-userns"] if self.no_nested_userns else []
        files = [part for path, fd in descriptors.items() for part in ("--ro-bind-data", str(fd), path)]
        return [
            "bwrap", "--unshare-all", "--unshare-user", *nested, "--die-with-parent", "--new-session",
            "--cap-drop", "ALL", *_system(), "--proc", "/proc", "--dev", "/dev",
            "--size", str(self.limits.scratch), "--tmpfs", "/tmp", "--chdir", "/tmp",
            *self._python(), *files,
            "--clearenv", "--setenv", "PATH", "/usr/bin", "--setenv", "PYTHONHASHSEED", "0",
            "--setenv", "OMP_NUM_THREADS", "1", "--setenv", "PYTHONPATH", SITE, "--",
            *inner(job, self.limits, self.interpreter, JOB),
        ]  # fmt: skip

    def _python(self) -> list[str]:
        """Binds of the interpreter: after the scratch folder, which would hide one that lies under /tmp."""
        parts = ["--ro-bind", str(self.interpreter.prefix), str(self.interpreter.prefix)]
        for folder in self.interpreter.hidden:
            parts += ["--tmpfs", str(folder)]
        for folder in self.interpreter.libraries():
            parts += ["--ro-bind", str(folder), f"{SITE}/{folder.name}"]
        return parts

    def facts(self) -> dict[str, object]:
        """See `contract.Sandbox`."""
        return {
            "sandbox": self.kind,
            "sandbox_version": _answer("--version").split()[-1],
            "nested_userns": not self.no_nested_userns,
            "process_limit": self.process_limit.holds,
            "process_limit_by": self.process_limit.how,
        }

    def close(self) -> None:
        """See `contract.Sandbox`."""
        self._running.kill_all()
        self.process_limit.close()


def inner(job: Job, limits: Limits, interpreter: Interpreter, folder: str) -> list[str]:
    """What runs inside: limits of each process, then the interpreter.

    They are set inside because the number of processes counts all of the user outside.
    """
    announce = ["/bin/sh", "-c", 'echo ready; exec "$@"', "sh"] if job.announce else []
    return [
        "/usr/bin/prlimit", f"--as={limits.address_space}", f"--nproc={limits.processes}",
        f"--fsize={limits.file_size}", f"--cpu={job.cpu_s}", f"--nofile={limits.open_files}", "--core=0", "--",
        *announce, str(interpreter.executable), *job.flags, f"{folder}/{job.script}", *job.arguments,
    ]  # fmt: skip


def _system() -> list[str]:
    """/usr, and the old top-level folders as this system has them."""
    parts = ["--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for path in (Path("/lib"), Path("/lib64"), Path("/bin")):
        if path.is_symlink():
            parts += ["--symlink", os.readlink(path).lstrip("/"), str(path)]
        elif path.is_dir():
            parts += ["--ro-bind", str(path), str(path)]
    return parts


def _in_memory(content: bytes) -> int:
    """A descriptor that holds `content` (a pipe would block beyond 64 KiB)."""
    descriptor = os.memfd_create("job")
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def is_installed() -> bool:
    """Whether the program is there; whether it works is for the probe to say."""
    return shutil.which("bwrap") is not None and Path("/usr/bin/prlimit").is_file()


def _answer(option: str) -> str:
    return subprocess.run(["bwrap", option], capture_output=True, text=True, timeout=10).stdout
