"""Where does the treatment beat the baseline? One comparison per study, against the recipe keys that differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pandas as pd
from pydantic import BaseModel

from gspo_cli.config import Recipe
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.report.compare.comparison import unit
from gspo_cli.report.compare.study import ComparisonRequest, compare
from gspo_cli.report.runs.facts import flatten
from gspo_cli.report.runs.folders import find_study, read_study
from gspo_cli.runlog.strict_json import read_object

DECIDED = ("better", "different", "equal")
"""Verdicts that a map shows as a result; every other cell is white."""
NOT_AXES = ("name", "seed", "model.threads", "report.", "arms.")
"""Keys that tell studies apart without being a condition."""
MOST = 2


@dataclass(frozen=True, slots=True)
class MapCell:
    """One study of the map."""

    study: Path
    values: dict[str, Any]
    """Its value on each axis."""
    result: dict[str, Any] | None
    """Its comparison (`compare`); None where nothing was measured yet."""
    why: str = ""
    """Why not."""


def map_cells(
    names: Sequence[str], root: Path, request: ComparisonRequest, axes: Sequence[str] = ()
) -> tuple[list[str], list[MapCell]]:
    """(the axes, one cell a study) of studies, and of sweeps, whose studies lie in one folder.

    `axes` = recipe keys; by default those in which the studies differ.
    Errors: GspoError for studies that do not differ in one or two keys, or two with the same values; as `compare`.
    """
    folders = [study for name in names for study in _studies(name, root)]
    tables = [_settings(folder) for folder in folders]
    keys = list(axes) or _differing(tables)
    if not 1 <= len(keys) <= MOST:
        raise GspoError(
            "no axis for a map" if not keys else f"the studies differ in {len(keys)} keys",
            "all their recipes are the same" if not keys else f"they are {', '.join(keys[:8])}",
            "give studies that differ, or one sweep" if not keys else f"choose one or two: --axis {keys[0]}",
        )
    cells = [
        _measured(folder, {key: _value(table, key) for key in keys}, request)
        for folder, table in zip(folders, tables, strict=True)
    ]
    seen: dict[str, Path] = {}
    for cell in cells:
        where = str(cell.values)
        if where in seen:
            raise GspoError(
                f"{seen[where]} and {cell.study} have the same place on the map",
                f"both have {', '.join(f'{key} = {value}' for key, value in cell.values.items())}",
                "leave one out, or choose other axes with --axis",
            )
        seen[where] = cell.study
    return keys, cells


def _studies(name: str, root: Path) -> list[Path]:
    for folder in (Path(name), root / name):
        if folder.is_dir() and not (folder / "study.json").is_file() and not list(folder.glob("*/run.json")):
            found = {file.parent for file in folder.glob("*/study.json")}
            found |= {file.parent.parent for file in folder.glob("*/*/run.json")}
            if found:
                return sorted(found)
    return [find_study(name, root).folder]


def _settings(folder: Path) -> dict[str, Any]:
    """Dotted key -> value: of its plan, which holds for all arms, or of its first run if it has none."""
    plans = read_object(folder / "study.json")["plans"] if (folder / "study.json").is_file() else []
    if plans and "recipe" in plans[-1]:
        return dict(flatten(plans[-1]["recipe"]))
    return dict(flatten(read_object(min(folder.glob("*/config.json")))))


def _differing(tables: Sequence[dict[str, Any]]) -> list[str]:
    """Keys with more than one value. A key that only some tables have is at its default in the others."""
    keys = dict.fromkeys(key for table in tables for key in table if not key.startswith(NOT_AXES))
    return [key for key in keys if len({str(_value(table, key)) for table in tables}) > 1]


def _value(table: dict[str, Any], key: str) -> Any:
    return table[key] if key in table else _default(key)


def _default(key: str) -> Any:
    """A recipe key's default; None for one that recipes do not have, such as a parameter of an algorithm."""
    model: type[BaseModel] = Recipe
    for part in key.split("."):
        field = model.model_fields.get(part)
        if field is None:
            return None
        kinds = [field.annotation, *get_args(field.annotation)]
        tables = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not tables:
            return field.get_default(call_default_factory=True, validated_data={})
        model = tables[0]
    return None


def _measured(folder: Path, values: dict[str, Any], request: ComparisonRequest) -> MapCell:
    if not list(folder.glob("*/run.json")):
        return MapCell(folder, values, None, "no run has begun")
    try:
        return MapCell(folder, values, compare(read_study(folder), request))
    except GspoError as error:
        if error.code != ExitCode.USER_ERROR:
            raise
        return MapCell(folder, values, None, f"{error.message}: {error.why}")


def map_table(axes: Sequence[str], cells: Sequence[MapCell]) -> pd.DataFrame:
    """One row a cell, in the order of its values: the axes' columns, then `effect`, `low`, `high` (treatment minus
    baseline, 95 %, in `unit`), `n` pairs of runs, `verdict`, `decided`."""
    rows = [
        {key: _text(cell.values[key]) for key in axes} | {"study": cell.study.name} | _row(cell)
        for cell in sorted(cells, key=lambda cell: [_order(cell.values[key]) for key in axes])
    ]
    return pd.DataFrame(rows)


def _row(cell: MapCell) -> dict[str, Any]:
    found = cell.result
    if found is None or found["verdict"] == "refused" or found.get("n") is None:
        verdict = "unmeasured" if found is None else str(found["verdict"])
        nothing: dict[str, Any] = dict.fromkeys(("effect", "low", "high"), float("nan"))
        return nothing | {"n": 0, "unit": "", "verdict": verdict, "decided": False}
    scale = 100 if found["points"] else 1
    low, high = found["ci"] or (float("nan"), float("nan"))
    return {
        "effect": scale * found["effect"], "low": scale * low, "high": scale * high, "n": found["n"],
        "unit": unit(found), "verdict": found["verdict"], "decided": found["verdict"] in DECIDED,
    }  # fmt: skip


def _order(value: Any) -> tuple[int, float, str]:
    """Numbers by size, before everything else."""
    number = value[0] if isinstance(value, list) and value else value
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return (0, float(number), "") if is_number else (1, 0.0, str(value))


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "-".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else "default" if value is None else str(value)
