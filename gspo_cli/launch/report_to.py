"""`--report-to`: a process beside the training for each tracker, which follows the study's logs."""

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gspo_cli.errors import quoted
from gspo_cli.launch.local import same_package

LAST_LOOK_S = 60.0
"""Time that a tracker has to write the last rows once training has ended."""


@contextmanager
def reporting(study: Path, trackers: list[str], note: Callable[[str], None]) -> Iterator[None]:
    """Mirrors the study for each tracker while the context lasts, and afterwards what has come since.

    A tracker has a process of its own, so that none can stop or slow a run; if one fails, `note` says why and training
    goes on. Each ends with this process even if that is killed.
    """
    outputs = [tempfile.TemporaryFile() for _ in trackers]  # noqa: SIM115 - closed below
    followers = [
        subprocess.Popen(
            [*same_package("gspo_cli.exporters.mirror:main"), str(study), tracker],
            stdin=subprocess.PIPE, stdout=output, stderr=output, process_group=0,
        )
        for tracker, output in zip(trackers, outputs, strict=True)
    ]  # fmt: skip
    try:
        yield
    finally:
        for process in followers:
            assert process.stdin
            process.stdin.close()  # the signal to take a last look and end
        for process, tracker, output in zip(followers, trackers, outputs, strict=True):
            try:
                code = process.wait(LAST_LOOK_S)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            with output:
                output.seek(max(0, output.seek(0, 2) - 2000))
                said = output.read().decode(errors="replace").strip().splitlines()
            last = said[-1] if said else "it said nothing"
            if code:
                command = f"gspo runs export {quoted(study)} --to {tracker}"
                note(f"warning: {tracker} was not kept up to date: {last}; {command}")
            else:
                note(f"{tracker}: {last}")
