"""Checksums of a run's or a study's files in `sealed.json`, which show any later change."""

import hashlib
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError, quoted
from gspo_cli.runlog.fs import write_text
from gspo_cli.runlog.log import canonical

CHECKSUMS = "sealed.json"
MUTABLE = (CHECKSUMS, "log.txt", "invalidated.json", "run.lock", "heartbeat.json")
"""Files of a run that may change after its end."""

ORIGIN = "archive.json"
"""In the folder of a study that came as an archive: the archive's hash. Archives hold no seals, and may leave out log
lines."""
LINK = re.compile(rb'"prev":"([0-9a-f]{32})","seq":(\d+),"step":(\d+)}\n')
KIND = re.compile(rb'"kind":"([a-z]+)"')
"""How a log line ends."""

Entries = dict[str, dict[str, Any]]


def write_run_checksums(run: Path) -> None:
    """Record the checksum of every file that a run has written, replacing earlier records. Those of its checkpoints are
    in their manifests: to read a large model's again would take minutes, after a signal too.

    Errors: GspoError (exit code 6) if the disk refuses.
    """
    files = (p for p in sorted(run.rglob("*")) if p.is_file() and p.name not in MUTABLE)
    write_text(
        run / CHECKSUMS, _text(entries(run, (p for p in files if not p.name.startswith(".tmp-")), _manifests(run)))
    )


def _manifests(run: Path) -> Entries:
    """What the manifests of a run's checkpoints say of their files."""
    known: Entries = {}
    for path in run.glob("checkpoints/step-*/MANIFEST.json"):
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            if path.parent.name.removeprefix("step-").isdecimal() and path.is_file():
                files, place = json.loads(path.read_text(encoding="utf-8"))["files"], path.parent.relative_to(run)
                known |= {
                    (place / n).as_posix(): {"bytes": e["bytes"], "sha256": e["sha256"]} for n, e in files.items()
                }
    return known


def add_checksums(folder: Path, paths: Iterable[Path]) -> None:
    """Add or renew the checksums of some files under `folder`. Errors: GspoError (exit code 6) if the disk refuses."""
    write_text(folder / CHECKSUMS, _text(read_checksums(folder) | entries(folder, paths)))


def read_checksums(folder: Path) -> Entries:
    """The recorded checksums; empty if there are none or the record was altered (see `checksums_intact`)."""
    record = _read(folder)
    return record["files"] if record else {}


def checksums_intact(folder: Path) -> bool:
    """Whether the record itself is unchanged; True if there is none."""
    return not (folder / CHECKSUMS).exists() or _read(folder) is not None


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        text = (folder / CHECKSUMS).read_text(encoding="utf-8")
        record = json.loads(text)
        return record if text == _text(record["files"]) else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def entries(folder: Path, paths: Iterable[Path], known: Entries | None = None) -> Entries:
    """Size and sha256 of these files, by their path within `folder`. `known` = of those that others have hashed."""
    found, named = known or {}, ((path.relative_to(folder).as_posix(), path) for path in paths)
    return {n: found.get(n) or {"bytes": p.stat().st_size, "sha256": sha256_of(p)} for n, p in named}


def _text(files: Entries) -> str:
    own = hashlib.sha256(canonical(files).encode()).hexdigest()
    return json.dumps({"files": files, "sha256": own}, indent=1, sort_keys=True) + "\n"


def refuse_damaged(log: Path, sha256: str | None = None) -> None:
    """Refuse a log that is not what a run wrote that has ended: by its seal or, where the run was not sealed since, by
    the chain of its lines. A run that is still being written passes.

    `sha256` = of the log, if it is known. Errors: GspoError (exit code 6).
    """
    try:
        why = _damage(log, sha256)
    except (KeyError, TypeError, AttributeError):
        why = f"the seal of its run ({CHECKSUMS}) has another form than any that is written"
    if why is not None:
        raise GspoError(
            f"{log} was changed after it was written", why,
            f"`gspo runs verify {quoted(log.parent)}` names every change; restore the run from a copy",
            ExitCode.STORAGE,
        )  # fmt: skip


def _damage(log: Path, sha256: str | None) -> str | None:
    """What is wrong with the log of a run that has ended."""
    run, events = log.parent, log.with_name("events.jsonl")
    written = events.read_bytes() if events.is_file() else b""
    marks = re.findall(rb'"event":"(start|end)"', written)
    record = _read(run)
    if record is None and (run / CHECKSUMS).exists():
        return f"the seal of its run ({CHECKSUMS}) is not what was written"
    seal = record["files"] if record else {}
    if sealed := seal.get(events.name):
        if hashlib.sha256(written[: sealed["bytes"]]).hexdigest() != sealed["sha256"]:
            return f"{events.name} beside it does not begin with what its run sealed"
        if sealed["bytes"] == len(written) and (entry := seal.get(log.name)):
            same = log.stat().st_size == entry["bytes"] and (sha256 or sha256_of(log)) == entry["sha256"]
            return None if same else "its bytes are not those that its run sealed (sha256)"
    has_ended = marks and marks[-1] == b"end"
    heads = re.findall(rb'"event":"end"[^\n]*"head":"([^"]*)"', written)
    return _broken_link(log, heads[-1:]) if has_ended and log.name == "metrics.jsonl" else None


def _broken_link(log: Path, heads: list[bytes]) -> str | None:
    """The first line that does not carry the hash of the line before it, or a last one that is not the run's."""
    is_archive, head, seq, place = (log.parents[1] / ORIGIN).is_file(), b"", -1, (b"", b"")
    with log.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                break  # torn, which readers leave out
            link = LINK.search(line, max(0, len(line) - 200))
            if link is None:
                return f"line {number} has another form than the lines that runs write"
            before, seq = seq, int(link[2])
            if seq > 0 and number == 1:
                return f"it begins with line {seq + 1}"
            kind = KIND.search(line)
            last, place = place, (kind[1] if kind else b"", link[3])
            # an archive may leave out a batch's updates, which stand between its `rollout` and its `step`
            is_gap = is_archive and seq > before + 1 and place[0] == b"step" and last == (b"rollout", link[3])
            if head and not is_gap and (seq != before + 1 or link[1] != head):
                return f"line {number} does not carry the hash of the line before it"
            head = hashlib.sha256(line[:-1]).hexdigest()[:32].encode()
    return None if heads in ([], [head]) else "its last line is not the one that its run ended with"
