"""Train one run of a study in its own process: `python -m gspo_cli.training.worker`.

Reads one JSON line from stdin (what to train) and writes its events to stdout as lines, and nothing else there.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.events import LOCAL, SamplingProgress, WorkerEnded, to_line

if TYPE_CHECKING:
    from gspo_cli.events import Emit, Event

WAIT_S = 30.0
"""Longest wait for the process of an earlier attempt to release the run."""
ACTIVITY_S = 1.0
"""Least time between two reports of a sampling that goes on."""


def main() -> int:
    """Trains the run that stdin describes. Returns the run's exit code."""
    from gspo_cli.rollout.vllm.worker.child import die_with_parent

    die_with_parent(os.getppid())
    emit = sender(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # whatever libraries print goes to stderr
    request = json.loads(sys.stdin.readline())
    try:
        return _train(request, emit)
    except GspoError as error:
        emit(WorkerEnded(int(error.code), error.message, error.why, error.hint))
        return int(error.code)
    except KeyboardInterrupt:
        return 130


def check_package(request: dict[str, Any]) -> None:
    """Errors: GspoError when this process runs another code than the one that started it."""
    from gspo_cli.runlog.provenance import PACKAGE, package_sha256

    wanted = request["package"]
    if wanted["sha256"] != package_sha256():
        raise GspoError(
            "a worker runs other code than the command that started it",
            f"{PACKAGE} on {socket.gethostname()} has sha256 {package_sha256()[:12]}; the command runs "
            f"{wanted['path']} with {wanted['sha256'][:12]}",
            "install one version of gspo everywhere, and do not change it while a study runs",
        )


def sender(stream: TextIO) -> Emit:
    """A sink that sends a run's events; of a sampling that goes on, one a second."""
    sent = 0.0

    def emit(event: Event) -> None:
        nonlocal sent
        if isinstance(event, LOCAL) or (isinstance(event, SamplingProgress) and time.monotonic() - sent < ACTIVITY_S):
            return
        sent = time.monotonic()
        stream.write(to_line(event))
        stream.flush()

    return emit


def _train(request: dict[str, Any], emit: Emit) -> int:
    from gspo_cli.models.device import prepare_torch
    from gspo_cli.models.remote_code import allow_code
    from gspo_cli.training.run import execute
    from gspo_cli.training.study.arms import plan_runs
    from gspo_cli.training.study.plans import StudyPlan

    check_package(request)
    study, start = Path(request["study"]), Path(request["start"])
    if "folder" in request:
        _enter(Path(request["folder"]), study, start)
    allow_code(request["trust_remote_code"])
    plan = StudyPlan.from_table(request["plan"])
    (run,) = (run for run in plan_runs(plan.recipe, plan.arms, [request["seed"]]) if run.arm == request["arm"])
    prepare_torch(plan.recipe.model.threads, plan.recipe.model.float32_matmul)
    if not request.get("go_on") or not _resume(study / run.name, start, request, emit):
        changes, allowed = request.get("changes", {}), request.get("allowed", [])
        execute(run, start, study, plan, request["argv"], emit, overrides=changes, allowed=allowed)
    return int(ExitCode.OK)


def _enter(folder: Path, study: Path, start: Path) -> None:
    """Changes to the folder where the study was started, perhaps on another machine.

    Errors: GspoError when this machine does not see the same files.
    """
    try:
        os.chdir(folder)
        needed = [study / "study.json", *([start] if start.is_absolute() else [])]  # a hub name is no path
        missing = "".join(f"{path} is not there" for path in needed if not path.exists())
    except OSError as error:
        missing = str(error)
    if missing:
        raise GspoError(
            f"{socket.gethostname()} does not see the study's files",
            missing,
            "put --out, the working directory and GSPO_CACHE on storage that all machines share (docs/clusters.md)",
        )


def _resume(run: Path, start: Path, request: dict[str, Any], emit: Emit) -> bool:
    """Resumes a run from its newest checkpoint; False if there is nothing to resume."""
    from gspo_cli.training.run import resume
    from gspo_cli.training.state.resume import finish, has_begun, is_complete

    _wait_for(run)
    overrides = request.get("changes", {})
    if not has_begun(run):
        return False
    if is_complete(run) and not overrides:
        finish(run)
    else:
        resume(run, lambda _: start, overrides, request.get("allowed", []), request["argv"], emit)
    return True


def _wait_for(run: Path) -> None:
    """Waits until no process holds the run; one whose worker was lost may take a moment to die.

    Errors: GspoError when it is held for longer.
    """
    from gspo_cli.runlog.lock import locked

    until = time.monotonic() + WAIT_S
    while True:
        try:
            with locked(run):
                return
        except GspoError as error:
            if error.code != ExitCode.USER_ERROR or time.monotonic() > until:
                raise
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
