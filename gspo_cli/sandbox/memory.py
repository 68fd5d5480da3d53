"""A bound on the memory of a whole program: a watcher that kills its processes, and a filter of system calls.

The kernel's limits are per process, and a memory cgroup is not ours to create on most machines. So a thread adds up
what the processes of each program hold, fifty times a second. It cannot see memory that no process maps: memfds, shared
memory of System V, queues. A seccomp filter forbids creating these, and files are limited by the size of their mounts.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

MEMORY_LIMIT, STORAGE_LIMIT = "memory limit", "storage limit"
PERIOD_S = 0.02
PAGE = os.sysconf("SC_PAGE_SIZE")


class Watched(Protocol):
    """A running program."""

    @property
    def pid(self) -> int:
        """Of the process whose descendants are the program."""

    @property
    def excess(self) -> Callable[[list[int]], bool]:
        """Whether its processes use too much of something that only the sandbox knows."""

    def stop(self, reason: str) -> None:
        """Kill it, and remember why."""


class MemoryWatch:
    """Stops the programs of a set whose processes hold more than `limit` bytes together.

    `sweep` is called at every look.
    """

    def __init__(self, limit: int, programs: Callable[[], Iterable[Watched]], sweep: Callable[[], None]) -> None:
        self.limit, self._programs, self._sweep = limit, programs, sweep
        self._lock = threading.Lock()
        self._runs = False

    def start(self) -> None:
        """Watch until no program is left. Call it after adding one."""
        with self._lock:
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._watch, name="gspo-memory-watch", daemon=True).start()

    def _watch(self) -> None:
        period = PERIOD_S
        while True:
            time.sleep(period)
            with self._lock:
                programs = list(self._programs())
                if not programs:
                    self._runs = False
                    return
            self._sweep()
            period = PERIOD_S
            for program in programs:
                family = [program.pid]
                held = held_bytes(family)
                if held > self.limit and shared_once(family) > self.limit:
                    program.stop(MEMORY_LIMIT)
                elif program.excess(family):
                    program.stop(STORAGE_LIMIT)
                elif self.limit / 2 < held <= self.limit:  # it may be on its way
                    period = PERIOD_S / 5


def held_bytes(family: list[int]) -> int:
    """Bytes that processes and their descendants hold, who join the list; shared pages count repeatedly."""
    resident = 0
    for member in family:
        with suppress(OSError, IndexError, ValueError):
            resident += int(Path(f"/proc/{member}/statm").read_text(encoding="ascii").split()[1]) * PAGE
            for thread in os.listdir(f"/proc/{member}/task"):
                family += map(int, Path(f"/proc/{member}/task/{thread}/children").read_text(encoding="ascii").split())
    return resident


def shared_once(family: list[int]) -> int:
    """Bytes that processes hold together. They stand still while this is counted, for it takes a while."""
    _signal(family, signal.SIGSTOP)
    try:
        return sum(map(_proportional, set(family)))
    finally:
        _signal(family, signal.SIGCONT)


def _signal(family: list[int], number: int) -> None:
    for pid in family:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _proportional(pid: int) -> int:
    """The process's share of what it holds; all of it where the kernel does not tell the share."""
    with suppress(OSError):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        if found := re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE):
            return int(found[1]) * 1024
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE
    return 0


FORBIDDEN = (
    "memfd_create", "memfd_secret", "shmget", "msgget", "semget", "mq_open", "io_uring_setup", "userfaultfd", "bpf",
    "perf_event_open", "add_key", "request_key", "keyctl",
)  # fmt: skip
"""System calls that hold memory outside of any process, and a few that no program to grade needs."""
_NUMBERS = {
    "x86_64": (0xC000003E, (319, 447, 29, 68, 64, 240, 425, 323, 321, 298, 248, 249, 250)),
    "aarch64": (0xC00000B7, (279, 447, 194, 186, 190, 180, 425, 282, 280, 241, 217, 218, 219)),
}
"""Machine -> its audit number, and the numbers of `FORBIDDEN` (from the kernel's headers)."""
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF: LD|W|ABS, JMP|JEQ|K, JMP|JGE|K, RET|K
_ALLOW, _NO_SUCH_CALL = 0x7FFF0000, 0x00050000 | 38  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO with ENOSYS
_X32 = 0x40000000


def seccomp_filter() -> bytes | None:
    """The filter as classic BPF: `FORBIDDEN`, and every call of another architecture, do not exist.

    None on a machine whose numbers are not listed above.
    """
    if platform.machine() not in _NUMBERS:
        return None
    architecture, numbers = _NUMBERS[platform.machine()]
    count = len(numbers)
    refusal = 5 + count  # the place of the last step; a jump counts from the step that follows it
    steps = [
        (_LOAD, 0, 0, 4),  # struct seccomp_data: the call's number at 0, the architecture at 4
        (_EQUAL, 0, refusal - 2, architecture),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, refusal - 4, 0, _X32),
        *((_EQUAL, refusal - 5 - i, 0, number) for i, number in enumerate(numbers)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _NO_SUCH_CALL),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)
