"""Bubblewrap: unprivileged namespaces, one command line per program (github.com/containers/bubblewrap)."""

import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gspo_cli.sandbox.contract import SCRATCH, Job, Sandbox, job_environment
from gspo_cli.sandbox.machine import Interpreter
from gspo_cli.sandbox.memory import seccomp_filter
from gspo_cli.sandbox.process import Process

FILTER = ""  # the descriptor of the filter of system calls, which has no path
JOB, SITE = "/opt/job", "/opt/site"
NOBODY = "65534"
PASSWD = f"candidate:x:{NOBODY}:{NOBODY}::/tmp:/bin/false\n".encode()
# When memory runs out, the kernel kills programs before us. Another user may reopen its pipes too, as /dev/stdin.
LAUNCH = 'echo 1000 > /proc/self/oom_score_adj; chmod a+rw /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2; exec "$@"'
MASKED = ("acpi", "kcore", "keys", "key-users", "latency_stats", "sched_debug", "scsi", "timer_list", "timer_stats")


@dataclass(frozen=True)
class User:
    """The user as whom programs run, and so the limit on their processes.

    Root keeps rights within a user namespace: the files of /proc belong to it, and the kernel's limit on a user's
    processes (RLIMIT_NPROC) does not bind it. So where we are root, programs run as `nobody`.
    """

    limit: str = "rlimit"
    prefix: tuple[str, ...] = ()
    """Put before the sandbox's command."""
    places: Mapping[Path, Path] = field(default_factory=dict)
    """Where the user finds folders that it cannot reach, such as an interpreter in root's home; they are mounted there
    in front of the sandbox."""


def nobody(folders: Iterable[Path] = ()) -> User:
    """The user `nobody`, who reads `folders`."""
    hidden = [folder for folder in folders if not _others_reach(folder)]
    places = {folder: Path(f"/tmp/{number}") for number, folder in enumerate(hidden)}
    binds = [part for folder, place in places.items() for part in ("--ro-bind", str(folder), str(place))]
    mounts = ("bwrap", "--dev-bind", "/", "/", "--tmpfs", "/tmp", *binds, "--") if binds else ()
    switch = ("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--")
    return User("rlimit as nobody", (*mounts, *switch), places)


def find_user(folders: Iterable[Path]) -> User:
    """Ourselves, unless we are root."""
    rows = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
    # in a container without root's rights, its 0 is another user
    is_root = os.geteuid() == 0 and any(row.split()[:2] == ["0", "0"] for row in rows)
    return nobody(folders) if is_root else User()


def _others_reach(folder: Path) -> bool:
    return all(parent.stat().st_mode & 1 for parent in folder.parents) and folder.stat().st_mode & 5 == 5


class Bubblewrap(Sandbox):
    """A `Sandbox` of bubblewrap."""

    kind = "bwrap"

    def __init__(self, interpreter: Interpreter, user: User) -> None:
        super().__init__(interpreter)
        self.user = user
        self.no_nested_userns = "--disable-userns" in _bwrap_output("--help")
        self.filter = seccomp_filter()

    def start(self, job: Job) -> Process:
        files = {f"{JOB}/{name}": content for name, content in job.files.items()} | {"/etc/passwd": PASSWD}
        descriptors = {path: _memory_file(content) for path, content in files.items()}
        if self.filter is not None:
            descriptors[FILTER] = _memory_file(self.filter)
        try:
            popen = subprocess.Popen(
                ["/bin/sh", "-c", LAUNCH, "sh", *self.user.prefix, *self.command(job, descriptors)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                cwd="/", env={"PATH": os.defpath}, pass_fds=tuple(descriptors.values()), start_new_session=True,
            )  # fmt: skip
        finally:
            for descriptor in descriptors.values():
                os.close(descriptor)
        return self._running.add(popen)

    def command(self, job: Job, descriptors: dict[str, int]) -> list[str]:
        """The whole command line; `descriptors` hold the content of each file."""
        nested = ["--disable-userns"] if self.no_nested_userns else []
        files = [part for path, fd in descriptors.items() if path for part in ("--ro-bind-data", str(fd), path)]
        calls = ["--seccomp", str(descriptors[FILTER])] if FILTER in descriptors else []
        shared = SCRATCH // 8  # for locks and small arrays of `multiprocessing`
        masks = [part for name in MASKED for part in _mask(Path("/proc", name))]
        variables = [part for variable in job_environment(SITE).items() for part in ("--setenv", *variable)]
        return [
            "bwrap", "--unshare-all", "--unshare-user", *nested, "--die-with-parent", "--new-session",
            "--cap-drop", "ALL", *_system_binds(),
            "--proc", "/proc", *masks, "--remount-ro", "/proc", "--dev", "/dev",
            "--size", str(shared), "--tmpfs", "/dev/shm",
            "--size", str(SCRATCH - shared), "--tmpfs", "/tmp", "--chdir", "/tmp",
            *self._python_binds(), *files, "--remount-ro", "/dev", "--remount-ro", "/", *calls,
            "--clearenv", *variables, "--",
            *job.command(self.interpreter, JOB),
        ]  # fmt: skip

    def _python_binds(self) -> list[str]:
        """Binds of the interpreter. They follow the scratch folder, which would hide an interpreter under /tmp."""
        places, prefix = self.user.places, self.interpreter.prefix
        parts = ["--ro-bind", str(places.get(prefix, prefix)), str(prefix)]
        for folder in self.interpreter.hidden:
            parts += ["--tmpfs", str(folder), "--remount-ro", str(folder)]
        for folder in self.interpreter.libraries():
            parts += ["--ro-bind", str(places.get(folder, folder)), f"{SITE}/{folder.name}"]
        return parts

    def facts(self) -> dict[str, object]:
        return {
            "sandbox": self.kind,
            "sandbox_version": _bwrap_output("--version").split()[-1],
            "nested_userns": not self.no_nested_userns,
            "process_limit": True,
            "process_limit_by": self.user.limit,
            "syscall_filter": self.filter is not None,
        }


def _system_binds() -> list[str]:
    """/usr, and the old top-level folders as this system has them."""
    parts = ["--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for path in (Path("/lib"), Path("/lib64"), Path("/bin")):
        if path.is_symlink():
            parts += ["--symlink", os.readlink(path).lstrip("/"), str(path)]
        elif path.is_dir():
            parts += ["--ro-bind", str(path), str(path)]
    return parts


def _mask(path: Path) -> list[str]:
    """Hide a file or folder of /proc that tells of the whole machine."""
    if path.is_dir():
        return ["--tmpfs", str(path), "--remount-ro", str(path)]
    return ["--ro-bind", "/dev/null", str(path)] if path.exists() else []


def _memory_file(content: bytes) -> int:
    """A descriptor that holds `content` (a pipe would block beyond 64 KiB)."""
    descriptor = os.memfd_create("job")
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _bwrap_output(option: str) -> str:
    return subprocess.run(["bwrap", option], capture_output=True, text=True, timeout=10).stdout
