"""A bound on the memory of a whole program: a watcher that kills its processes, and a filter of system calls.

The kernel's limits are per process, and a memory cgroup is not ours to create on most machines. So a thread adds up
what the processes of each program hold, fifty times a second. It cannot see memory that no process maps: memfds, shared
memory of System V, queues. A seccomp filter forbids creating these, and files are limited by the size of their mounts.
"""

import os
import platform
import re
import signal
import struct
from contextlib import suppress
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


def held_bytes(family: list[int]) -> int:
    """Bytes that processes and their descendants hold, who join the list; shared pages count repeatedly."""
    resident = 0
    for member in family:
        resident += _resident(member)
        with suppress(OSError, ValueError):
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
    return _resident(pid)


def _resident(pid: int) -> int:
    """Bytes that the process holds, shared ones included; 0 if it has ended."""
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
_SOCKET, _FIRST_FOREIGN = {"x86_64": 41, "aarch64": 198}, 17
"""The call's number. Families from there on are no network's that a namespace holds: AF_VSOCK reaches the host."""
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
    refusal = 8 + count  # the place of the last step; a jump counts from the step that follows it
    steps = [
        (_LOAD, 0, 0, 4),  # struct seccomp_data: the call's number at 0, the architecture at 4
        (_EQUAL, 0, refusal - 2, architecture),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, refusal - 4, 0, _X32),
        *((_EQUAL, refusal - 5 - i, 0, number) for i, number in enumerate(numbers)),
        (_EQUAL, 0, 2, _SOCKET[platform.machine()]),
        (_LOAD, 0, 0, 16),  # its first argument, the family
        (_AT_LEAST, 1, 0, _FIRST_FOREIGN),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _NO_SUCH_CALL),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)
