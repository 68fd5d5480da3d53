"""Whole files of a run, read strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.runlog.strict_json import parse_object


def read_object(path: Path) -> dict[str, Any]:
    """A file that is one JSON object.

    Errors: GspoError (exit code 6) naming the file.
    """
    try:
        return parse_object(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GspoError(f"{path} cannot be read", str(error), "restore it from a copy", ExitCode.STORAGE) from error
