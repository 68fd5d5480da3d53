"""Whether a figure, table or page is still the one that its side file describes, made of logs that are still there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gspo_cli import __version__
from gspo_cli.errors import GspoError
from gspo_cli.report.folders import Study, read_study
from gspo_cli.report.save import images_of
from gspo_cli.report.sources import ENDING
from gspo_cli.runlog.seal import sha256_of
from gspo_cli.runlog.strict_json import parse_object

Complaint = tuple[Path, str]


def verify_side(path: Path) -> Iterator[Complaint]:
    """(file, what is wrong) for everything that a side file names."""
    try:
        side = parse_object(path.read_text(encoding="utf-8"))
        runs = [(str(run["run"]), run.get("log")) for run in side.get("runs", [])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield path, f"it is no side file: {error}"
        return
    is_table = path.name.endswith(ENDING)
    study = path.parent if is_table else path.parent.parent
    yield from (complaint for run, log in runs for complaint in _log(study, run, log))
    if is_table:
        table = path.parent / str(side.get("file"))
        if not table.is_file() or sha256_of(table) != side.get("sha256"):
            yield table, f"it is gone, or not the file that {path.name} describes"
    else:
        yield from _figure(path, side, study)


def _log(study: Path, run: str, log: dict[str, Any] | None) -> Iterator[Complaint]:
    """The part of a log that was read, by its length and hash; more lines may have come since."""
    if log is None:
        return
    folder = study if (study / "run.json").is_file() else study / run
    path = folder / "metrics.jsonl"
    if not path.is_file():
        yield path, "it is gone"
        return
    with path.open("rb") as file:
        if hashlib.sha256(file.read(log["bytes"])).hexdigest() != log["sha256"]:
            yield path, "it is not the log that the figure or table was made of (sha256)"


def _figure(path: Path, side: dict[str, Any], study: Path) -> Iterator[Complaint]:
    """Its csv by hash and by making it again, its images by the side file's hash within them."""
    csv = path.with_suffix(".csv")
    if not csv.is_file() or sha256_of(csv) != side.get("csv", {}).get("sha256"):
        yield csv, f"it is gone, or not the data that {path.name} describes"
        return
    digest = sha256_of(path).encode()
    for image in images_of(path) or [path.with_suffix(".svg")]:
        if not image.is_file() or digest not in image.read_bytes():
            yield image, f"it is gone, or does not carry the sha256 of {path.name}"
    try:
        differs = _is_rebuilt_otherwise(csv, side, study)
    except GspoError as error:
        yield csv, f"it cannot be made again: {error.message}: {error.why}"
        return
    if differs:
        yield csv, "made again from the logs it comes out otherwise"


def _is_rebuilt_otherwise(csv: Path, side: dict[str, Any], study: Path) -> bool:
    """Only the version that drew a figure is held to draw it again alike."""
    from gspo_cli.report.plots import FIGURES, rebuilt_csv

    if side.get("gspo") != __version__ or side.get("figure") not in FIGURES:
        return False
    named = {run["run"] for run in side["runs"]}
    whole = read_study(study)
    chosen = Study(whole.folder, tuple(run for run in whole.runs if run.folder.name in named))
    return rebuilt_csv(chosen, side["figure"]) != csv.read_bytes()
