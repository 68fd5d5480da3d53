"""One run of a study in a process of its own: `python -m gspo_cli.training.child`.

Reads one JSON line from stdin (what to train) and writes JSON lines to stdout (what happens); nothing else there.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from gspo_cli.errors import ExitCode, GspoError

WAIT_S = 30.0
"""For the process of an earlier attempt to let go of the run."""


def main() -> int:
    """Trains the run that stdin asks for; the exit code of the run."""
    from gspo_cli.rollout.hosts.child import die_with_parent

    die_with_parent(os.getppid())
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever libraries print goes to stderr
    asked = json.loads(sys.stdin.readline())
    try:
        return _train(asked, told)
    except GspoError as error:
        _tell(told, error=[error.message, error.why, error.hint])
        return int(error.code)
    except KeyboardInterrupt:
        return 130


def _train(asked: dict[str, Any], told: TextIO) -> int:
    from gspo_cli.models.foreign_code import allow_code
    from gspo_cli.models.torch_setup import prepare_torch
    from gspo_cli.training.plans import Plan
    from gspo_cli.training.run import View, execute
    from gspo_cli.training.study import plan

    if "folder" in asked:
        _enter(Path(asked["folder"]), Path(asked["study"]), Path(asked["start"]))
    allow_code(asked["trust_remote_code"])
    whole = Plan.from_table(asked["plan"])
    (run,) = plan(whole.recipe, [asked["arm"]], [asked["seed"]])
    prepare_torch(whole.recipe.model.threads)
    view = View(
        lambda step, values: _tell(told, step=step, values=values),
        lambda _, warnings: _tell(told, warnings=warnings),
        lambda text: _tell(told, warnings=[text]),
    )
    study, start = Path(asked["study"]), Path(asked["start"])
    if not asked.get("go_on") or not _go_on(study / run.name, start, asked, view):
        execute(run, start, study, whole, asked["argv"], view)
    return int(ExitCode.OK)


def _enter(folder: Path, study: Path, start: Path) -> None:
    """Works where the study was started, which may have been on another machine.

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


def _go_on(run: Path, start: Path, asked: dict[str, Any], view: Any) -> bool:
    """Goes on with a run where its newest checkpoint is; False if there is nothing to go on with."""
    from gspo_cli.training.resume import finish, has_begun, is_complete
    from gspo_cli.training.run import resume

    _wait_for(run)
    changes = asked.get("changes", {})
    if not has_begun(run):
        return False
    if is_complete(run) and not changes:
        finish(run)
    else:
        resume(run, lambda _: start, changes, asked.get("allowed", []), asked["argv"], view)
    return True


def _wait_for(run: Path) -> None:
    """Until no process holds the run; one whose worker was lost may take a moment to die.

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


def _tell(told: TextIO, **what: Any) -> None:
    told.write(json.dumps(what) + "\n")
    told.flush()


if __name__ == "__main__":
    sys.exit(main())
