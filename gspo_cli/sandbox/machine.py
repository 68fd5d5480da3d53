"""How many programs to run at once, and how fast this machine is."""

from __future__ import annotations

import os
import time
from pathlib import Path


def physical_cores() -> int:
    """Cores that this process may use, two threads of one core counting once."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text(encoding="utf-8") if siblings.is_file() else str(cpu))
    return len(cores)


def calibration_ms() -> float:
    """Milliseconds of a fixed loop: how fast Python runs here and now, to stand beside figures with time limits."""
    start = time.perf_counter()
    total = 0
    for i in range(1_000_000):
        total += i * i
    return round((time.perf_counter() - start) * 1000, 1) if total else 0.0
