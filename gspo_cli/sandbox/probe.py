"""Whether a sandbox isolates: a program that must not read our files, reach the network or see our environment.

What a sandbox promises and what this kernel, this container and this configuration let it do are two things, so it is
tried once before anything depends on it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

from gspo_cli.sandbox.contract import START_S, Job, Sandbox

VARIABLE = "GSPO_SANDBOX_PROBE"

PROGRAM = """
import json, os, socket, sys
secret, port = sys.argv[1], int(sys.argv[2])
seen = []
for path in (secret, "/etc/shadow", "/proc/1/environ"):
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
with open("scratch", "w") as file:
    file.write("x")
print(json.dumps(seen))
"""


def fault(sandbox: Sandbox) -> str | None:
    """What is wrong with a sandbox: that it does not start, or what a program in it can reach; None if nothing is."""
    own_source = str(Path(__file__).resolve())  # beside it lie the answers of the embedded benchmark
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        job = Job("probe.py", {"probe.py": PROGRAM.encode()}, announce=True, arguments=(own_source, port))
        os.environ[VARIABLE] = "seen"
        try:
            done = sandbox.start(job).run(b"", time.monotonic() + START_S, cap=1 << 16)
        except OSError as error:
            return str(error)
        finally:
            del os.environ[VARIABLE]
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    if len(lines) != 2 or done.code != 0:
        return " ".join(done.stderr.decode("utf-8", "replace").split())[-300:] or "its program does not end"
    seen = json.loads(lines[1])
    return f"a program inside reaches {', '.join(seen)}" if seen else None
