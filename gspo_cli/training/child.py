"""One run of a study in a process of its own: `python -m gspo_cli.training.child`.

Reads one JSON line from stdin (what to train) and writes JSON lines to stdout (what happens); nothing else there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from gspo_cli.errors import ExitCode, GspoError


def main() -> int:
    """Trains the run that stdin asks for; the exit code of the run."""
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

    allow_code(asked["trust_remote_code"])
    whole = Plan.from_table(asked["plan"])
    (run,) = plan(whole.recipe, [asked["arm"]], [asked["seed"]])
    prepare_torch(whole.recipe.model.threads)
    view = View(
        lambda step, values: _tell(told, step=step, values=values),
        lambda _, warnings: _tell(told, warnings=warnings),
        lambda text: _tell(told, warnings=[text]),
    )
    execute(run, Path(asked["start"]), Path(asked["study"]), whole, asked["argv"], view)
    return int(ExitCode.OK)


def _tell(told: TextIO, **what: Any) -> None:
    told.write(json.dumps(what) + "\n")
    told.flush()


if __name__ == "__main__":
    sys.exit(main())
