"""What is said and printed when a run or a study ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gspo_cli.cli import console
from gspo_cli.errors import ExitCode, GspoError

if TYPE_CHECKING:
    from gspo_cli.cli.live import TrainView


def end(study: Path, stopped: int, as_json: bool) -> None:
    """Says where the study is, and with exit code 4 how many of its runs a training guard stopped."""
    if not as_json:
        console.out.print(str(study))
    if stopped:
        console.note(f"{stopped} of the runs were stopped by a guard; they stay in the study and count")
        raise typer.Exit(ExitCode.GUARD)


@contextmanager
def saying_where(run: Path) -> Iterator[None]:
    """Names the run's folder when its training is stopped."""
    try:
        yield
    except (KeyboardInterrupt, GspoError) as error:
        word = "interrupted" if isinstance(error, KeyboardInterrupt) else "stopped"
        if run.exists():
            console.note(f"{word}; the log up to the last whole rollout batch is in {run}")
        raise


def finished(view: TrainView, run: Path, arm: str, seed: int, as_json: bool) -> None:
    """A run is done: its last line, and its record on stdout."""
    last = view.rows[-1] if view.rows else ["nothing left to do:", "unchanged"]
    view.end_run(f"run {run}: {last[0]} reward {last[1]}")
    if as_json:
        console.print_json({"run": str(run), "arm": arm, "seed": seed})
