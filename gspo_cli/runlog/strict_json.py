"""Strict JSON: objects only; no `NaN`, no `Infinity`, no duplicate key, no number that overflows, no half of a
surrogate pair."""

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.runlog.fs import require_regular


def parse_object(text: str) -> dict[str, Any]:
    """Parse one JSON object. Errors: ValueError with the reason."""
    try:
        value = _DECODER.decode(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that is one JSON object. Errors: GspoError (exit code 6) naming the file."""
    try:
        require_regular(path)
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


def _parse_bounded(text: str) -> int:
    if len(text) > 20 or not -(1 << 63) <= (value := int(text)) < 1 << 63:
        raise ValueError(f"the number {text[:40]} overflows")
    return value


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table of these pairs. Errors: ValueError for a key that is there twice."""
    table = dict(pairs)
    if len(table) != len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"duplicate key {key[:100]!r}")
    return table


_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_parse_finite, parse_int=_parse_bounded, object_pairs_hook=unique_keys
)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
