"""`gspo runs verify`: recompute every hash of a run, a study or a figure, and name each file that differs."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gspo_cli import __version__
from gspo_cli.errors import GspoError
from gspo_cli.report.figures.plots import FIGURES, rebuilt_csv
from gspo_cli.report.figures.save import images_of
from gspo_cli.report.runs.facts import final_status, read_events
from gspo_cli.report.runs.folders import Study, read_study
from gspo_cli.report.runs.pairs import SIDE_FILE
from gspo_cli.report.runs.reader import LogReader
from gspo_cli.report.runs.seeds import PLANS, begun_runs
from gspo_cli.runlog.checksums import CHECKSUMS, checksums_intact, read_checksums, sha256_of
from gspo_cli.runlog.log import BrokenLine, Position, check_chain, config_text, short_hash
from gspo_cli.runlog.strict_json import parse_object, read_object

WEIGHTS = "checkpoints/"
"""May be removed to save space; the files that are left must be what was written."""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A file that is not what was written."""

    file: str
    line: int | None
    what: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found."""

    problems: list[Discrepancy]
    notes: list[str]
    """What could not be verified, and why that is no fault."""
    num_files: int
    """Files whose bytes were hashed."""


Finding = Discrepancy | str | int
"""A problem, a note, or how many files were hashed."""


def verify(path: Path) -> Verification:
    """Verifies a run folder, a study folder with its runs and reports, or one side file.

    Errors: GspoError if there is nothing of the kind.
    """
    if path.is_file() and path.suffix == ".json":
        return _collect(_checked(path, _side_file(path)))
    if not path.is_dir():
        raise GspoError(f"no run, study or side file {path}", "there is no such folder or .json file", "check the path")
    if _is_run(path):
        return _collect(_checked(path, _run(path)), _reports(path))
    runs = [p for p in sorted(path.iterdir()) if p.is_dir() and _is_run(p)]
    if not runs:
        raise GspoError(f"no run in {path}", "no folder in it has a run.json or metrics.jsonl", "name a study or a run")
    return _collect(
        _checked(path / CHECKSUMS, _checksums(path)),
        _checked(path / PLANS, _removed(path)),
        *(_checked(run, _run(run)) for run in runs),
        _reports(path),
    )


def _removed(study: Path) -> Iterator[Finding]:
    """Runs that `study.json`, which is sealed, says were begun."""
    gone = (study / name for name in begun_runs(study) if not (study / name).is_dir())
    yield from (_fault(run, "the study began this run, and it is gone") for run in gone)


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("run.json", "metrics.jsonl"))


def _collect(*checks: Iterable[Finding]) -> Verification:
    found = [finding for check in checks for finding in check]
    return Verification(
        [item for item in found if isinstance(item, Discrepancy)],
        [item for item in found if isinstance(item, str)],
        sum(item for item in found if isinstance(item, int)),
    )


def _checked(path: Path, check: Iterable[Finding]) -> Iterator[Finding]:
    """The findings of a check, which ends where a reader refuses the file, or at what has another form than anything
    that is ever written."""
    try:
        yield from check
    except GspoError as error:
        yield _fault(path, error.why)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, OSError) as error:
        yield _fault(path, f"it is not what was written: {type(error).__name__}: {error}")


def _fault(path: Path, what: str, line: int | None = None) -> Discrepancy:
    return Discrepancy(str(path), line, what)


def _run(run: Path) -> Iterator[Finding]:
    """One run: its records against each other, then every byte against the checksums."""
    if odd := [path for path in run.rglob("*") if path.exists() and not path.is_file() and not path.is_dir()]:
        yield _fault(odd[0], "it is no ordinary file")  # reading a pipe would wait for ever
        return
    yield from _checked(run / "run.json", _config(run))
    yield from _checked(run / "run.json", _modules(run))
    yield from _chain(run)
    rollouts = list(_checked(run / "events.jsonl", _rollouts(run)))
    yield from rollouts
    try:
        status, _ = final_status(run)
    except (GspoError, TypeError, ValueError, KeyError) as error:
        yield _fault(run / "events.jsonl", error.why if isinstance(error, GspoError) else str(error))
        status = "broken"
    if status in ("running", "killed") and _grew_since_checksums(run):
        yield f"{run.name} has not ended: only its configuration, its log and stored rollouts were verified"
        return
    if not (run / CHECKSUMS).is_file():
        yield _fault(run / CHECKSUMS, "a run that has ended is sealed; this seal is gone or was never written")
    named = {fault.file for fault in rollouts if isinstance(fault, Discrepancy)}
    yield from (item for item in _checksums(run) if not (isinstance(item, Discrepancy) and item.file in named))


def _config(run: Path) -> Iterator[Finding]:
    """`config.json` against the hash in `run.json`."""
    path, run_json = run / "config.json", read_object(run / "run.json")

    def differs() -> Iterator[Finding]:
        text = config_text(read_object(path))
        if hashlib.sha256(text.encode()).hexdigest() != run_json["config_sha256"]:
            yield _fault(path, "it is not the configuration whose sha256 run.json holds")

    if "config_sha256" in run_json:
        yield from _checked(path, differs())


def _modules(run: Path) -> Iterator[Finding]:
    """The user's modules against the hashes of the files that the run used; that one has changed since is no fault."""
    plugins = read_object(run / "run.json").get("plugins") or {}
    known = {name: source["sha256"] for name, source in plugins.items()}
    for event in read_events(run) if known else []:
        if event.get("event") == "plugins_changed":
            known |= {name: change["is"] for name, change in event["plugins"].items()}
            names = ", ".join(event["plugins"])
            yield f"{run.name}: {names} changed while it was trained, after rollout batch {event['step']}"
    for name, source in plugins.items():
        path = Path(source.get("path", ""))
        if path.is_file() and sha256_of(path) != known[name]:
            yield f"{run.name}: {path} is no longer the file that it was trained with (sha256)"


def _chain(run: Path) -> Iterator[Finding]:
    """The log's hash chain, which begins at the configuration; stops at the first line that breaks it."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        return
    try:
        position = Position(0, 0, short_hash(config_text(read_object(run / "config.json"))))
        for block in LogReader(path).blocks():
            position = check_chain(block, position.head, position.num_lines)
    except BrokenLine as error:
        yield _fault(path, error.why, error.line)
    except GspoError as error:
        yield _fault(path, f"{error.message}: {error.why}")
    except OSError as error:
        yield _fault(path, f"{error}: unreadable")


def _rollouts(run: Path) -> Iterator[Finding]:
    """The stored batches of the run, and those that a resume has put aside, against their hashes in `events.jsonl`."""
    try:
        stored = _stored_rollouts(read_events(run))
    except GspoError:
        return  # the check of how the run ended reports unreadable events
    for name, sha256 in stored.items():
        path = run / name
        if not path.is_file():
            if not list(run.glob(f"dropped/*/{path.name}")):  # a resume may have died after it moved the batch
                yield _fault(path, "it is gone")
        elif sha256_of(path) != sha256:
            yield _fault(path, "its bytes are not those that events.jsonl says were stored (sha256)")


def _stored_rollouts(events: list[dict[str, Any]]) -> dict[str, str]:
    """File -> sha256. A resume moves the batches after its checkpoint to `dropped/attempt-N/`, N being the attempt
    before; the run stores them again."""
    found: dict[str, tuple[int, str]] = {}
    for event in events:
        if event.get("event") == "rollout_stored":
            found[str(event["file"])] = int(event["step"]), str(event["sha256"])
            for name in event.get("replaces", ()):
                found.pop(name, None)
        elif event.get("event") == "start" and "resumed_from" in event:
            for name, entry in list(found.items()):
                if name.startswith("rollouts/") and entry[0] > event["resumed_from"]:
                    del found[name]
                    found[f"dropped/attempt-{event['attempt'] - 1}/{Path(name).name}"] = entry
    return {name: sha256 for name, (_, sha256) in found.items()}


def _grew_since_checksums(run: Path) -> bool:
    """Whether a run without an end has no checksums yet, or was resumed after they were written."""
    entry = read_checksums(run).get("events.jsonl")
    if entry is None:
        return not (run / CHECKSUMS).exists()
    with (run / "events.jsonl").open("rb") as file:
        same_start = hashlib.sha256(file.read(entry["bytes"])).hexdigest() == entry["sha256"]
        return same_start and bool(file.read(1))


def _checksums(folder: Path) -> Iterator[Finding]:
    """Every file that the folder's `sealed.json` names."""
    if not checksums_intact(folder):
        yield _fault(folder / CHECKSUMS, "the seal itself is not what was written")
    num_removed = 0
    for name, entry in read_checksums(folder).items():
        path = folder / name
        if not path.is_file() and name.startswith(WEIGHTS):
            num_removed += 1
        elif not path.is_file() or path.is_symlink():
            yield _fault(path, "it is gone" if not path.exists() else "it is not an ordinary file")
        elif path.stat().st_size != entry["bytes"]:
            yield _fault(path, f"it has {path.stat().st_size} bytes; {entry['bytes']} were sealed")
        elif sha256_of(path) != entry["sha256"]:
            yield _fault(path, "its bytes are not those sealed (sha256)")
        else:
            yield 1
    if num_removed:
        yield f"{folder.name}: {num_removed} files of {WEIGHTS} were removed and are not verified"


def _reports(folder: Path) -> Iterator[Finding]:
    """The side files of a folder's figures, tables and pages."""
    for path in [*sorted(folder.glob("figures/*.json")), *sorted(folder.glob(f"*{SIDE_FILE}"))]:
        yield from _checked(path, _side_file(path))


def _side_file(path: Path) -> Iterator[Finding]:
    """Everything that a side file names."""
    yield 1
    try:
        side = parse_object(path.read_text(encoding="utf-8"))
        runs = [(str(run["run"]), run.get("log")) for run in side.get("runs", [])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield _fault(path, f"it is no side file: {error}")
        return
    is_table = path.name.endswith(SIDE_FILE)
    study = path.parent if is_table else path.parent.parent
    for run, log in runs:
        if log is not None:
            yield from _log(study if (study / "run.json").is_file() else study / run, log)
    if is_table:
        table = path.parent / str(side.get("file"))
        if not table.is_file() or sha256_of(table) != side.get("sha256"):
            yield _fault(table, f"it is gone, or not the file that {path.name} describes")
    else:
        yield from _figure(path, side, study)


def _log(run: Path, log: dict[str, Any]) -> Iterator[Finding]:
    """The part of a log that was read, by its length and hash; it may have grown since."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        yield _fault(path, "it is gone")
        return
    with path.open("rb") as file:
        if hashlib.sha256(file.read(log["bytes"])).hexdigest() != log["sha256"]:
            yield _fault(path, "it is not the log that the figure or table was made of (sha256)")


def _figure(path: Path, side: dict[str, Any], study: Path) -> Iterator[Finding]:
    """Its csv by hash and by rebuilding it, its images by the side file's hash within them."""
    csv = path.with_suffix(".csv")
    if not csv.is_file() or sha256_of(csv) != side.get("csv", {}).get("sha256"):
        yield _fault(csv, f"it is gone, or not the data that {path.name} describes")
        return
    digest = sha256_of(path).encode()
    for image in images_of(path) or [path.with_suffix(".svg")]:
        if not image.is_file() or digest not in image.read_bytes():
            yield _fault(image, f"it is gone, or does not carry the sha256 of {path.name}")
    if side.get("gspo") != __version__ or side.get("figure") not in FIGURES:
        return  # only the version that drew a figure must be able to rebuild it
    named = {run["run"] for run in side["runs"]}
    try:
        whole = read_study(study)
        # one that has been invalidated since was drawn all the same
        drawn = tuple(replace(run, invalid=None) for run in whole.runs if run.folder.name in named)
        if rebuilt_csv(Study(whole.folder, drawn), side["figure"]) != csv.read_bytes():
            yield _fault(csv, "made again from the logs it comes out otherwise")
    except GspoError as error:
        yield _fault(csv, f"it cannot be made again: {error.message}: {error.why}")
