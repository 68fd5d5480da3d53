"""Which Python runs the candidates: the base of the running one, or of another, with numpy and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gspo_cli.errors import GspoError

# Asked of the interpreter itself, so that a virtual environment, pyenv, conda or the system all answer alike.
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
    """An interpreter as the candidates will see it."""

    executable: Path
    """The real file, not a link of a virtual environment."""
    prefix: Path
    hidden: tuple[Path, ...]
    """Site-packages of the base, which candidates must not read."""
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
    """The interpreter of the candidates; `python` names one that is not the running one.

    Errors: GspoError when it does not run.
    """
    command = [python or sys.executable, "-I", "-c", DESCRIBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, env={"PATH": os.defpath})
        said = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise GspoError(
            f"{command[0]} is no usable Python", str(error).splitlines()[0], "name another with --grader-python"
        ) from error
    numpy = said["numpy"] and Path(said["numpy"])
    hidden = tuple(map(Path, said["hidden"]))
    return Interpreter(
        Path(said["executable"]), Path(said["prefix"]), hidden, numpy, said["numpy_version"], said["version"]
    )
