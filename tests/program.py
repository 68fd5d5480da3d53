"""The installed program, and the log lines it writes, as the tests use them."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

GSPO = Path(sysconfig.get_path("scripts")) / "gspo"
"""The installed console script."""


class Done(NamedTuple):
    """What a finished command left behind."""

    code: int
    out: str
    err: str


Gspo = Callable[..., Done]


def strict_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines, all of them whole; NaN and Infinity are no JSON."""
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n"), f"{path} ends in the middle of a line"
    return [json.loads(line, parse_constant=_refuse) for line in text.splitlines()]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under a folder with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is not JSON")
