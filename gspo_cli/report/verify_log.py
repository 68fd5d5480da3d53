"""Whether a run's `metrics.jsonl` is the one that was written: its chain of hashes, from the configuration on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.report.jsonl import LogReader, lines_of
from gspo_cli.runlog.log import canonical, short_hash
from gspo_cli.runlog.strict_json import parse_object

Complaint = tuple[str, int | None, str]
"""File (relative to the run), line or None, what is wrong."""


def verify_config(run: Path, about: dict[str, Any]) -> Iterator[Complaint]:
    """`config.json` against the hash in `run.json`."""
    try:
        text = config_text(run)
    except (OSError, ValueError) as error:
        yield "config.json", None, str(error)
        return
    if hashlib.sha256(text.encode()).hexdigest() != about.get("config_sha256"):
        yield "config.json", None, "it is not the configuration whose sha256 run.json holds"


def config_text(run: Path) -> str:
    """The configuration as the log's first line has hashed it: without the study's name, which may change.

    Errors: OSError or ValueError for a file that is gone or no strict JSON.
    """
    config = parse_object((run / "config.json").read_text(encoding="utf-8"))
    return canonical({key: value for key, value in config.items() if key != "name"})


def verify_chain(run: Path) -> Iterator[Complaint]:
    """Each line's `prev` against the line before, its `seq` against its place; stops at the first that fails."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        return
    try:
        head, seq, reader = short_hash(config_text(run)), 0, LogReader(path)
        for block in reader.blocks():
            for line, record in zip(lines_of(block), reader.parse(block), strict=True):
                if record.get("seq") != seq:
                    yield path.name, seq + 1, f"`seq` is {record.get('seq')}, not {seq}: a line is missing or doubled"
                    return
                if record.get("prev") != head:
                    before = f"line {seq}" if seq else "the configuration"
                    yield path.name, seq + 1, f"`prev` is not the hash of {before}: one of the two was altered"
                    return
                head, seq = short_hash(line.decode()), seq + 1
    except (GspoError, OSError, ValueError) as error:
        yield path.name, None, getattr(error, "message", str(error)) + ": " + getattr(error, "why", "unreadable")
