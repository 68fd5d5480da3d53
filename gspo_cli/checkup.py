"""What `gspo doctor` says of the machine: memory, disk, the hub, the sandbox for graded programs."""

from __future__ import annotations

import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from gspo_cli.errors import GspoError
from gspo_cli.rollout.environment import Check
from gspo_cli.sandbox.choose import open_sandbox

GB = 1e9
LEAST_MEMORY, LEAST_DISK = 4 * GB, 5 * GB
"""Enough for the quickstart, whose environment and results need about half of each."""
HUB_S = 5.0


def judge_machine(results: Path, cache: Path) -> Iterator[Check]:
    """Cores, memory, and the two folders that are written to."""
    yield Check("cores", str(os.cpu_count()), "ok")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    short = "" if memory >= LEAST_MEMORY else "smaller models; what a recipe needs: gspo train RECIPE --dry-run"
    yield Check("memory", f"{memory / GB:.0f} GB", "warning" if short else "ok", short)
    for name, folder, elsewhere in (("results", results, "--out"), ("cache", cache, "GSPO_CACHE")):
        yield judge_folder(name, folder, elsewhere)


def judge_folder(name: str, folder: Path, elsewhere: str) -> Check:
    """Whether a folder, or the first above it that is there, can be written to and has room."""
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Check(name, f"{folder}: cannot be written to", "fault", f"name another folder: {elsewhere}")
    free = shutil.disk_usage(there).free
    fix = "" if free >= LEAST_DISK else f"make room, or name another folder: {elsewhere}"
    return Check(name, f"{folder}: {free / GB:.0f} GB free", "warning" if fix else "ok", fix)


def judge_hub() -> Iterator[Check]:
    """Whether models and data can be had by name; local folders and files never need it."""
    from huggingface_hub import constants, get_token

    local = "local folders and files work: --model FOLDER, --set task.path=FILE, --data NAME=FILE"
    if constants.HF_HUB_OFFLINE:
        yield Check("hub", "offline by HF_HUB_OFFLINE", "ok", local)
    else:
        try:
            urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=HUB_S).close()
            yield Check("hub", "reachable", "ok")
        except urllib.error.HTTPError:  # it answered
            yield Check("hub", "reachable", "ok")
        except OSError as error:
            yield Check("hub", f"not reachable: {getattr(error, 'reason', error)}", "warning", local)
    yield Check("hub cache", constants.HF_HUB_CACHE, "ok")
    yield Check("hub token", "present" if get_token() else "none", "ok")


def judge_sandbox() -> Check:
    """Whether programs can be graded here; nothing else needs it."""
    try:
        sandbox = open_sandbox()
    except GspoError as error:
        return Check("sandbox", error.why, "warning", f"to grade programs: {error.hint}")
    sandbox.close()
    return Check("sandbox", f"{sandbox.kind}, tried out", "ok")
