"""The harness as a job for a sandbox: its few files, under the names by which they import each other."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from gspo_cli.sandbox.contract import Job

OFFICIAL, FUNCTION = "start_official.py", "start_function.py"
PACKAGE = "gspo_cli.rewards.code.harness"


def harness_job(script: str, cpu_s: int) -> Job:
    """A job that runs `script` of the harness; the official one without `site`, whose `exit` and `quit` it lacks."""
    return Job("start.py", _files(script), flags=("-S",) if script == OFFICIAL else ("-X", "utf8"), cpu_s=cpu_s)


@cache
def _files(script: str) -> dict[str, bytes]:
    folder = PACKAGE.replace(".", "/")
    modules = {f.name: f.read_bytes() for f in files(PACKAGE).iterdir() if f.name.endswith(".py")}
    inside = {f"{folder}/{name}": text for name, text in modules.items() if not name.startswith("start_")}
    parents = Path(folder).parents  # packages on the way are empty: the harness needs nothing of them
    empty = {f"{parent}/__init__.py": b"" for parent in parents if parent.name}
    return inside | empty | {"start.py": modules[script]}
