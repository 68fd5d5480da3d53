"""What the scripts that measure this project against a bare variant share; standard library only.

The parent process of a measurement must stay small and quick: a child inherits its peak of memory.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def shown(found: dict[str, float], form: str = ".3f") -> str:
    """`spread`, as the tables print it."""
    return "{0:{3}} [{1:{3}}, {2:{3}}]".format(found["median"], found["min"], found["max"], form)


def interleave(variants: Sequence[Any], repeat: int) -> list[Any]:
    """The variants in the order of this repeat: every other one is backwards."""
    return list(variants) if repeat % 2 == 0 else list(reversed(variants))


def run_self(script: str, arguments: list[str], timeout: float = 600) -> dict[str, Any]:
    """The JSON that this script prints last when it is run with these arguments in a process of its own."""
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        sys.exit(f"{Path(script).name} {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def write(path: Path | None, result: dict[str, Any]) -> None:
    """The result with the versions and the machine, to a file if one is given."""
    result["versions"] = {"python": sys.version.split()[0]} | {n: version(n) for n in ("torch", "transformers")}
    result["machine"] = {
        "cores": os.cpu_count(),
        "system": platform.system(),
        "processor": processor(),
        "load": os.getloadavg(),
    }
    if path:
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def processor() -> str:
    """The processor's name, where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
