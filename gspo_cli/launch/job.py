"""One run of a study in a process of its own, and what it tells."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gspo_cli.errors import ExitCode, GspoError

Event = dict[str, Any]
"""`started`, `step` with its values, `warnings`; the last one is `ended` with the exit code and `error`, the three
parts of what went wrong or None."""

PROGRAM = (sys.executable, "-m", "gspo_cli.training.child")


@dataclass(frozen=True)
class Job:
    """A run to train."""

    name: str
    asked: dict[str, Any]
    """What `gspo_cli.training.child` reads: plain JSON."""


def follow(job: Job, environment: dict[str, str], program: tuple[str, ...] = PROGRAM) -> Iterator[Event]:
    """Trains a run and gives its events as they come.

    Closed early, it asks the process to save and end, and waits for that; the process itself ends with its parent.
    """
    yield {"started": True}
    said: list[str] | None = None
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile() as noise,
        subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=noise, env=environment, text=True) as process,
    ):
        assert process.stdin and process.stdout
        try:
            with suppress(BrokenPipeError):  # it died before it read; its exit code and last words say why
                process.stdin.write(json.dumps(job.asked) + "\n")
                process.stdin.close()
            for line in process.stdout:
                event = json.loads(line)
                said = event.get("error", said)
                yield event
        except BaseException:
            process.terminate()
            process.wait()
            raise
        code = process.wait()
        noise.seek(max(0, noise.seek(0, 2) - 2000))
        tail = noise.read().decode(errors="replace").strip()
    yield {"ended": code, "error": None if code == ExitCode.OK else _words(job.name, code, said, tail)}


def _words(name: str, code: int, said: list[str] | None, tail: str) -> list[str]:
    """What to say of a run that did not end well: its own words, else the last line that its process printed."""
    if said is not None:
        return [f"{name}: {said[0]}", *said[1:]]
    last = (tail.splitlines() or ["it said nothing"])[-1]
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return [f"run {name} ended", f"{how}; its last words: {last}", "train it alone on this machine to see more"]


def as_error(ended: Event) -> GspoError:
    """The error of an `ended` event."""
    code, (message, why, hint) = ended["ended"], ended["error"]
    return GspoError(message, why, hint, ExitCode(code) if code in list(ExitCode) else ExitCode.UNEXPECTED)


def shown(ended: Event) -> Event:
    """The same event for a view: with the reason in one line."""
    return {"ended": ended["ended"], "reason": ended["error"][0] if ended["error"] else ""}
