"""The provenance of a run: versions, code state, machine and command."""

import functools
import hashlib
import os
import platform
import subprocess
import sys
import uuid
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gspo_cli import __version__
from gspo_cli.runlog.log import now

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "datasets", "numpy", "pyarrow", "vllm")
ENVIRONMENT = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG",
               "PYTHONHASHSEED", "HF_HUB_OFFLINE")  # fmt: skip
"""The only variables recorded: others may hold secrets."""
PACKAGE = Path(__file__).resolve().parents[1]
SOURCE = PACKAGE.parent


def provenance(argv: list[str]) -> dict[str, Any]:
    """The part of `run.json` that every run of this process shares, with a new run id."""
    return {
        "schema": 1,
        "run_id": uuid.uuid4().hex,
        "created": now(),
        "argv": argv,
        "cwd": os.getcwd(),
        "gspo": __version__,
        "code": code_state(),
        "packages": {p: v for p in PACKAGES if (v := installed(p))},
        "python": sys.version.split()[0],
        "os": platform.platform(),
        "cpu": cpu_name(),
        "environment": {k: os.environ[k] for k in ENVIRONMENT if k in os.environ},
    }


def installed(package: str) -> str | None:
    """A package's installed version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@functools.cache
def package_sha256() -> str:
    """sha256 over the names and bytes of the package's source files, in name order; the same for a wheel and for the
    sources it was built from."""
    digest = hashlib.sha256()
    for path in sorted(path for kind in ("*.py", "*.in", "*.j2", "metrics.toml") for path in PACKAGE.rglob(kind)):
        digest.update(f"{path.relative_to(PACKAGE).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def code_state() -> dict[str, Any]:
    """The package's hash; in gspo's own source tree also its commit and uncommitted changes."""
    code = {"sha256": package_sha256()}
    if not _in_source_tree():
        return code
    diff = code_diff()
    return code | {
        "commit": _git("rev-parse", "HEAD").strip() or None,
        "dirty": bool(diff),
        "diff_sha256": hashlib.sha256(diff.encode()).hexdigest() if diff else None,
    }


def code_diff() -> str:
    """The uncommitted changes of the source tree as a patch."""
    return _git("diff", "HEAD", "--", "gspo_cli", "recipes") if _in_source_tree() else ""


def _in_source_tree() -> bool:
    return (SOURCE / ".git").exists() and (SOURCE / "pyproject.toml").exists()


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(SOURCE), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def cpu_name() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
