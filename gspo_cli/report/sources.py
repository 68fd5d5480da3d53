"""The side file of a table or page: which runs it was made of, the hashes of their logs, and which were left out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo_cli import __version__
from gspo_cli.report.folders import Run
from gspo_cli.runlog.fs import write_text
from gspo_cli.runlog.seal import seal_files, sha256_of

if TYPE_CHECKING:  # scipy, which figures need not wait for
    from gspo_cli.report.pairs import Member

ENDING = ".sources.json"


def about_run(run: Run, log: dict[str, Any] | None) -> dict[str, Any]:
    """A run as every side file names it."""
    return {
        "run": run.folder.name, "run_id": run.run_id, "arm": run.arm, "algorithm": run.algorithm,
        "replay": run.replay, "seed": run.seed, "log": log,
    }  # fmt: skip


def log_of(member: Member) -> dict[str, Any] | None:
    """How much of the member's `metrics.jsonl` was read, and its hash."""
    curves = member.curves
    if curves is None:
        return None
    return {"bytes": curves.num_bytes, "sha256": curves.sha256, "torn_bytes": curves.torn_bytes}


def write_sources(path: Path, members: list[Member], excluded: Mapping[str, str]) -> Path:
    """Writes `<name>.sources.json` beside a report file, and seals both.

    `members`: all runs of the study; `excluded`: folder name -> why the file does not rest on that run.
    Errors: GspoError (exit code STORAGE) when the disk refuses.
    """
    used = [about_run(m.facts.run, log_of(m)) for m in members if m.name not in excluded]
    left_out = [about_run(m.facts.run, log_of(m)) | {"reason": excluded[m.name]} for m in members if m.name in excluded]
    side = {"file": path.name, "sha256": sha256_of(path), "gspo": __version__, "runs": used, "excluded": left_out}
    beside = path.with_name(path.name.removesuffix(path.suffix) + ENDING)
    write_text(beside, json.dumps(side, indent=1, sort_keys=True, allow_nan=False) + "\n")
    seal_files(path.parent, [path, beside])
    return beside
