"""Strict JSON: objects only; no `NaN`, no `Infinity`, no duplicate key, no number that overflows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError


def parse_object(text: str) -> dict[str, Any]:
    """Parse one JSON object. Errors: ValueError with the reason."""
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that is one JSON object. Errors: GspoError (exit code 6) naming the file."""
    try:
        return parse_object(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GspoError(f"cannot read {path}", str(error), "restore the file from a copy", ExitCode.STORAGE) from error


def _refuse_constant(token: str) -> float:
    raise ValueError(f"{token} is not valid JSON")


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text} overflows")
    return value


def _parse_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"duplicate key {next(k for k in keys if keys.count(k) > 1)!r}")
    return table


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_parse_finite, object_pairs_hook=_parse_unique)
