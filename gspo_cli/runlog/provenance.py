"""What a run was made of: versions, machine, code, seeds and hashes for `run.json`."""

from __future__ import annotations

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
"""Recorded by name; nothing else of the environment is, because it holds secrets."""
SOURCE = Path(__file__).resolve().parents[2]


def provenance(argv: list[str]) -> dict[str, Any]:
    """The part of `run.json` that is the same for every run of this process, plus a fresh run id."""
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
    """A package's version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def code_state() -> dict[str, Any]:
    """Commit and uncommitted changes of the tool's own source tree; empty when it runs from an installed wheel."""
    if not (SOURCE / ".git").exists() or not (SOURCE / "pyproject.toml").exists():
        return {}
    diff = code_diff()
    return {
        "commit": _git("rev-parse", "HEAD").strip() or None,
        "dirty": bool(diff),
        "diff_sha256": hashlib.sha256(diff.encode()).hexdigest() if diff else None,
    }


def code_diff() -> str:
    """The uncommitted changes of that tree as a patch."""
    if not (SOURCE / ".git").exists() or not (SOURCE / "pyproject.toml").exists():
        return ""
    return _git("diff", "HEAD", "--", "gspo_cli", "recipes")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(SOURCE), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def cpu_name() -> str:
    """The processor, as the system names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
