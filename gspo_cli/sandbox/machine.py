"""The machine that graded programs run on: its Python, its cores, its speed."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gspo_cli.errors import GspoError

# The interpreter describes itself, so a virtual environment, pyenv, conda and the system all look alike.
DESCRIBE = """
import json, os, site, sys, sysconfig
from importlib import metadata, util
numpy = util.find_spec("numpy")
base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
hidden = {sysconfig.get_path(name, vars=base) for name in ("purelib", "platlib")}
hidden |= set(site.getsitepackages([sys.base_prefix]))
print(json.dumps({
    "executable": os.path.realpath(sys.executable),
    "prefix": os.path.realpath(sys.base_prefix),
    "hidden": sorted(p for p in map(os.path.realpath, hidden) if os.path.isdir(p)),
    "numpy": os.path.dirname(numpy.origin) if numpy else None,
    "numpy_version": metadata.version("numpy") if numpy else None,
    "version": "%d.%d.%d" % sys.version_info[:3],
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """An interpreter as the graded programs see it."""

    executable: Path
    """The real file, not a virtual environment's link."""
    prefix: Path
    hidden: tuple[Path, ...]
    """The base's site-packages, which programs must not read."""
    numpy: Path | None
    numpy_version: str | None
    version: str

    def libraries(self) -> list[Path]:
        """The folders that make numpy importable."""
        if self.numpy is None:
            return []
        return [folder for folder in (self.numpy, self.numpy.with_name("numpy.libs")) if folder.is_dir()]


@cache
def find_interpreter(python: str | None = None) -> Interpreter:
    """The interpreter for graded programs: the running one, or `python`. Errors: GspoError when it does not run."""
    command = [python or sys.executable, "-I", "-c", DESCRIBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, env={"PATH": os.defpath})
        facts = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise GspoError(
            f"{command[0]} is not a usable Python", str(error).splitlines()[0], "name another with --grader-python"
        ) from error
    return Interpreter(
        executable=Path(facts["executable"]),
        prefix=Path(facts["prefix"]),
        hidden=tuple(map(Path, facts["hidden"])),
        numpy=facts["numpy"] and Path(facts["numpy"]),
        numpy_version=facts["numpy_version"],
        version=facts["version"],
    )


def physical_cores() -> int:
    """This process's share of the cores that it may use; two threads of one core count once. The ranks on a machine,
    which all grade at the same time, share them."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text(encoding="utf-8") if siblings.is_file() else str(cpu))
    return max(1, len(cores) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def calibration_ms() -> float:
    """Milliseconds for a fixed loop: how fast Python runs here and now, recorded beside figures with time limits."""
    start = time.perf_counter()
    total = 0
    for i in range(1_000_000):
        total += i * i
    return round((time.perf_counter() - start) * 1000, 1) if total else 0.0
