"""What a program may write and hold, all of its processes together, as both users."""

import platform
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxes import own_sandbox, plain_user_sandbox

from gspo_cli.sandbox import contract
from gspo_cli.sandbox.contract import Job, Sandbox
from gspo_cli.sandbox.memory import held_bytes, seccomp_filter
from gspo_cli.sandbox.process import Finished

MIB = 1 << 20
PROGRAMS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("programs.toml").read_text("utf-8"))
STORAGE, MEMORY, HONEST = PROGRAMS["storage"], PROGRAMS["memory"], PROGRAMS["honest"]
FILTERED = PROGRAMS["probes"]["filtered"]


@pytest.fixture(scope="module", params=[own_sandbox, plain_user_sandbox])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    opened = request.param()
    yield opened
    opened.close()


def run(sandbox: Sandbox, program: str) -> tuple[Finished, int]:
    """The result, and the most that its processes held at once, in bytes."""
    process = sandbox.start(Job("program.py", {"program.py": program.encode()}, announce=True))
    most, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.01):
            most = max(most, held_bytes([process.pid]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    done = process.run(b"", time.monotonic() + 30, 1 << 16)
    ended.set()
    watcher.join()
    return done, most


@pytest.mark.parametrize("name", STORAGE)
def test_no_program_stores_more_than_its_share(sandbox: Sandbox, name: str) -> None:
    before = shutil.disk_usage("/dev/shm").used
    done, _ = run(sandbox, STORAGE[name])
    assert int(done.stdout.split()[1]) <= contract.SCRATCH / MIB
    assert shutil.disk_usage("/dev/shm").used - before < 64 * MIB


@pytest.mark.parametrize(
    "name", [min(MEMORY), *(pytest.param(n, marks=pytest.mark.slow) for n in MEMORY if n != min(MEMORY))]
)
def test_the_processes_together_hold_no_more_than_one_may(sandbox: Sandbox, name: str) -> None:
    bound = contract.MEMORY + 768 * MIB  # what 12 processes touch between two looks; more on a machine that stalls
    done, most = run(sandbox, MEMORY[name])
    if most > bound:
        done, most = run(sandbox, MEMORY[name])
    assert done.stopped == "memory limit" and done.code != 0
    assert most < bound


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_may_use_what_it_is_promised(sandbox: Sandbox, name: str) -> None:
    done, _ = run(sandbox, HONEST[name])
    assert done.stdout.endswith(b"survived\n") and done.stopped == ""


def test_the_filter_forbids_its_calls_and_no_other() -> None:
    steps = seccomp_filter()
    if platform.machine() != "x86_64" or steps is None:
        pytest.skip("the numbers below are those of x86_64")
    assert len(steps) % struct.calcsize("HBBI") == 0
    forbidden, others = [319, 447, 29, 68, 64, 240, 425, 323, 321, 298, 248, 249, 250], [0, 39, 318, 317]
    numbers = [*forbidden, *others, 0x40000000 + 39]  # the last one is a call of another architecture
    done = subprocess.run(
        [sys.executable, "-c", FILTERED, *map(str, numbers)], input=steps, capture_output=True, timeout=30, check=False
    )
    assert done.stdout.decode().split("] ")[0] == str([True] * 13 + [False] * 4 + [True])[:-1], done.stderr


def test_a_program_opens_no_socket_that_leaves_its_namespace() -> None:
    if (steps := seccomp_filter()) is None:
        pytest.skip("no filter for this machine")
    asks = "import socket\nfor family in map(int, sys.argv[1:]):\n    try: socket.socket(family).close()\n"
    asks += "    except OSError as error: found.append((family, error.errno))\nprint(found)"
    program = FILTERED.partition("for number")[0] + asks
    families = (socket.AF_UNIX, socket.AF_INET, socket.AF_VSOCK, socket.AF_ALG, socket.AF_PACKET)
    done = subprocess.run(
        [sys.executable, "-c", program, *(str(int(family)) for family in families)], input=steps, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.decode().strip() == str([(int(family), 38) for family in families[2:]]), done.stderr


def test_scratch_that_was_used_is_free_again(sandbox: Sandbox) -> None:
    for _ in range(3):  # in one after the other
        done, _ = run(sandbox, STORAGE["scratch"])
        assert done.stopped or int(done.stdout.split()[1]) >= 48
