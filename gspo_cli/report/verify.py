"""`gspo runs verify`: recomputes every hash of a run, a study or a figure, and names each file that differs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.report.run_facts import end_of
from gspo_cli.report.verify_figures import verify_side
from gspo_cli.report.verify_log import verify_chain, verify_config
from gspo_cli.report.verify_rollouts import verify_rollouts
from gspo_cli.runlog.seal import FILE, read_seal, seal_is_whole, sha256_of
from gspo_cli.runlog.strict_json import parse_object

WEIGHTS = "checkpoints/"
"""May be removed to save space; what is left of it must be what was written."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that is not what was written."""

    file: str
    line: int | None
    what: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found."""

    problems: list[Problem]
    notes: list[str]
    """What could not be verified, and why that is no fault."""
    num_files: int
    """Files whose bytes were hashed."""


def verify(path: Path) -> Verified:
    """Verifies a run folder, a study folder with its runs and reports, or one side file.

    Errors: GspoError if there is nothing of the kind.
    """
    if path.is_file() and path.suffix == ".json":
        return _gathered([(path.parent, _side(path))])
    if not path.is_dir():
        raise GspoError(f"no run, study or side file {path}", "there is no such folder or .json file", "check the path")
    if _is_run(path):
        return _gathered([(path, _run(path)), *_reports(path)])
    runs = [p for p in sorted(path.iterdir()) if p.is_dir() and _is_run(p)]
    if not runs:
        raise GspoError(f"no run in {path}", "no folder in it has a run.json or metrics.jsonl", "name a study or a run")
    return _gathered([(path, _sealed(path)), *((run, _run(run)) for run in runs), *_reports(path)])


Finding = Problem | str | int
"""A problem, a note, or how many files were hashed."""


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("run.json", "metrics.jsonl"))


def _gathered(parts: list[tuple[Path, Iterator[Finding]]]) -> Verified:
    found = [item for _, items in parts for item in items]
    return Verified(
        [item for item in found if isinstance(item, Problem)],
        [item for item in found if isinstance(item, str)],
        sum(item for item in found if isinstance(item, int)),
    )


def _run(run: Path) -> Iterator[Finding]:
    """One run: its records against each other, then every byte against the seal."""
    try:
        about: dict[str, Any] = parse_object((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        yield Problem(str(run / "run.json"), None, str(error))
        about = {}
    if about and "config_sha256" in about:
        yield from (Problem(str(run / file), line, what) for file, line, what in verify_config(run, about))
    yield from (Problem(str(run / file), line, what) for file, line, what in verify_chain(run))
    rollouts = [Problem(str(run / file), line, what) for file, line, what in verify_rollouts(run)]
    yield from rollouts
    try:
        status, _ = end_of(run)
    except GspoError as error:
        yield Problem(str(run / "events.jsonl"), None, error.why)
        status = "broken"
    if status == "running" and _has_gone_on(run):
        yield f"{run.name} has not ended: only its configuration, its log and stored rollouts were verified"
        return
    if not (run / FILE).is_file():
        yield Problem(str(run / FILE), None, "a run that has ended is sealed; this seal is gone or was never written")
    named = {problem.file for problem in rollouts}
    yield from (item for item in _sealed(run) if not (isinstance(item, Problem) and item.file in named))


def _has_gone_on(run: Path) -> bool:
    """Whether a run without an end was never sealed, or was taken up again after it was."""
    sealed = read_seal(run).get("events.jsonl")
    if sealed is None:
        return not (run / FILE).exists()
    with (run / "events.jsonl").open("rb") as file:
        begins_alike = hashlib.sha256(file.read(sealed["bytes"])).hexdigest() == sealed["sha256"]
        return begins_alike and bool(file.read(1))


def _sealed(folder: Path) -> Iterator[Finding]:
    """Every file that the folder's seal names."""
    if not seal_is_whole(folder):
        yield Problem(str(folder / FILE), None, "the seal itself is not what was written")
    gone = []
    for name, entry in read_seal(folder).items():
        path = folder / name
        if not path.is_file() and name.startswith(WEIGHTS):
            gone.append(name)
        elif not path.is_file() or path.is_symlink():
            yield Problem(str(path), None, "it is gone" if not path.exists() else "it is not an ordinary file")
        elif path.stat().st_size != entry["bytes"]:
            yield Problem(str(path), None, f"it has {path.stat().st_size} bytes; {entry['bytes']} were sealed")
        elif sha256_of(path) != entry["sha256"]:
            yield Problem(str(path), None, "its bytes are not those sealed (sha256)")
        else:
            yield 1
    if gone:
        yield f"{folder.name}: {len(gone)} files of {WEIGHTS} were removed and are not verified"


def _reports(folder: Path) -> list[tuple[Path, Iterator[Finding]]]:
    """The side files of a folder's figures, tables and pages."""
    sides = [*sorted(folder.glob("figures/*.json")), *sorted(folder.glob("*.sources.json"))]
    return [(folder, _side(path)) for path in sides]


def _side(path: Path) -> Iterator[Finding]:
    yield from (Problem(str(file), None, what) for file, what in verify_side(path))
    yield 1
