"""Whether every stored rollout batch is the one whose hash `events.jsonl` took when it was written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.report.run_facts import read_events
from gspo_cli.report.verify_log import Complaint
from gspo_cli.runlog.seal import sha256_of


def verify_rollouts(run: Path) -> Iterator[Complaint]:
    """The batches of the run as it goes on, and those that a resume has put aside."""
    try:
        stored = stored_rollouts(read_events(run))
    except GspoError:
        return  # the check of how the run ended names the events as unreadable
    for name, sha256 in stored.items():
        path = run / name
        if not path.is_file():
            if not list(run.glob(f"dropped/*/{path.name}")):  # a resume may have died after it moved the batch
                yield name, None, "it is gone"
        elif sha256_of(path) != sha256:
            yield name, None, "its bytes are not those that events.jsonl says were stored (sha256)"


def stored_rollouts(events: list[dict[str, Any]]) -> dict[str, str]:
    """File -> sha256. A resume moves the batches after its checkpoint to `dropped/attempt-N/`, N being the attempt
    before; the run stores them again."""
    found: dict[str, tuple[int, str]] = {}
    for event in events:
        if event.get("event") == "rollout_stored":
            found[str(event["file"])] = int(event["step"]), str(event["sha256"])
        elif event.get("event") == "start" and "resumed_from" in event:
            for name, entry in list(found.items()):
                if name.startswith("rollouts/") and entry[0] > event["resumed_from"]:
                    del found[name]
                    found[f"dropped/attempt-{event['attempt'] - 1}/{Path(name).name}"] = entry
    return {name: sha256 for name, (_, sha256) in found.items()}
