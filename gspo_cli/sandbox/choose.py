"""Open the sandbox for untrusted programs: bubblewrap, or an error. There is no silent fallback.

A sandbox starts a Python program with its files and three pipes. What the program is and what its output means is the
grader's business.

What bubblewrap enforces: separate user, process, network, IPC and host-name namespaces; no capabilities; a read-only
system with one interpreter; an empty environment; files in memory (64 MiB in all); and per process 2 GiB of address
space and limits on open files, file size, CPU time and the number of processes. A watcher bounds the memory of all
processes of a program together, and a filter of system calls what it cannot see (`memory.py`). The whole process
namespace ends with the program.

Not covered: kernel faults; side channels; one program slowing down another; what a program takes within a fiftieth of
a second (the kernel is told to kill candidates first when memory runs out). `unsafe_local` enforces the per-process
limits and the watcher's alone.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from gspo_cli.errors import GspoError
from gspo_cli.sandbox.bubblewrap import Bubblewrap, find_user
from gspo_cli.sandbox.contract import START_S, Job, Sandbox, job_environment
from gspo_cli.sandbox.machine import find_interpreter
from gspo_cli.sandbox.process import Process


class UnsafeLocal(Sandbox):
    """A `Sandbox` that isolates nothing."""

    kind = "unsafe-local"

    def start(self, job: Job) -> Process:
        folder = Path(tempfile.mkdtemp(prefix="gspo-job-"))
        scratch = folder / "scratch"
        scratch.mkdir()
        for name, content in job.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        site = self.interpreter.numpy.parent if self.interpreter.numpy else folder
        popen = subprocess.Popen(
            job.command(self.interpreter, str(folder)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=job_environment(str(site)) | {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"},
            cwd=scratch, start_new_session=True,
        )  # fmt: skip
        return self._running.add(popen, lambda: shutil.rmtree(folder, ignore_errors=True))

    def facts(self) -> dict[str, object]:
        return {"sandbox": self.kind, "process_limit": False, "nested_userns": True}


NO_SANDBOX = "no sandbox for the programs to grade"
REMEDY = (
    "`apt-get install bubblewrap` or `dnf install bubblewrap`, and allow user namespaces (Docker: --security-opt "
    "seccomp=unconfined; Ubuntu 24.04: an AppArmor profile for bwrap); --unsafe-local runs the programs without any "
    "isolation"
)


@dataclass(frozen=True)
class SandboxChoice:
    """How the user wants programs to run."""

    unsafe_local: bool = False
    """Run programs without isolation; recorded with their verdicts."""
    python: str | None = None
    """An interpreter other than the running one."""


ANY_SANDBOX = SandboxChoice()


def open_sandbox(choice: SandboxChoice = ANY_SANDBOX) -> Sandbox:
    """Bubblewrap, after a probe has shown that it holds.

    Errors: GspoError where it does not work, unless `unsafe_local` waives it.
    """
    if not sys.platform.startswith("linux"):
        raise GspoError("programs are graded on Linux only", f"this is {sys.platform}", "run it in a Linux container")
    interpreter = find_interpreter(choice.python)
    if choice.unsafe_local:
        return UnsafeLocal(interpreter)
    if shutil.which("bwrap") is None:
        raise GspoError(NO_SANDBOX, "bubblewrap is not installed", REMEDY)
    sandbox = Bubblewrap(interpreter, find_user((interpreter.prefix, *interpreter.libraries())))
    if problem := probe(sandbox):
        sandbox.close()
        raise GspoError(NO_SANDBOX, f"bubblewrap: {problem}", REMEDY)
    return sandbox


CANARY = "GSPO_SANDBOX_PROBE"
PROBE = """
import importlib.util, json, os, socket, sys
secret, port = sys.argv[1], int(sys.argv[2])
if sys.argv[3] and not importlib.util.find_spec("numpy"):
    sys.exit("the user whom programs run as cannot read " + sys.argv[3])
seen = []
for path in (secret, "/etc/shadow", "/proc/1/environ", "/proc/keys", "/proc/slabinfo", "/proc/vmallocinfo"):
    try:
        if "GSPO_" in open(path, errors="replace").read() or path != "/proc/1/environ":
            seen.append(path)
    except OSError:
        continue
if any(name.startswith("GSPO_") for name in os.environ):
    seen.append("the environment")
try:
    socket.create_connection(("127.0.0.1", port), timeout=2)
    seen.append("the network")
except OSError:
    sys.stderr.write("no network")
try:
    open("/usr/gspo-probe", "w")
    seen.append("a writable system")
except OSError:
    sys.stderr.write("no writing")
kernel = [os.path.join(folder, name) for folder, _, names in os.walk("/proc/sys") for name in names]
for path in ("/proc/self/oom_score_adj", *kernel):
    try:
        os.close(os.open(path, os.O_WRONLY))
        seen.append("a writable " + path)
        break
    except OSError:
        continue
with open("scratch", "w") as file:
    file.write("x")
print(json.dumps(seen))
"""


def probe(sandbox: Sandbox) -> str | None:
    """What is wrong with a sandbox: it does not start, or a program inside reaches what it must not. None if sound."""
    own_source = str(Path(__file__).resolve())  # the answers of the embedded benchmark lie beside it
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        arguments = (own_source, port, str(sandbox.interpreter.numpy or ""))
        job = Job("probe.py", {"probe.py": PROBE.encode()}, announce=True, arguments=arguments)
        os.environ[CANARY] = "seen"
        try:
            result = sandbox.start(job).run(b"", time.monotonic() + START_S, cap=1 << 16)
        except OSError as error:
            return str(error)
        finally:
            del os.environ[CANARY]
    lines = result.stdout.decode("utf-8", "replace").splitlines()
    if len(lines) != 2 or result.code != 0:
        return " ".join(result.stderr.decode("utf-8", "replace").split())[-300:] or "its program does not end"
    seen = json.loads(lines[1])
    return f"a program inside reaches {', '.join(seen)}" if seen else None
