"""Where does the treatment beat the baseline? One comparison per study, against the recipe keys that differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd

from gspo_cli.config import flat
from gspo_cli.errors import ExitCode, GspoError, nearest
from gspo_cli.recipe import known_keys
from gspo_cli.report.compare.result import Compared, Found
from gspo_cli.report.compare.study import ComparisonRequest, compare
from gspo_cli.report.compare.texts import BELOW_START, sensitivity_texts
from gspo_cli.report.runs.facts import recipe_default
from gspo_cli.report.runs.folders import find_study, read_study
from gspo_cli.runlog.folder import find_folder, read_study_file
from gspo_cli.runlog.strict_json import read_object

DECIDED = ("better", "different", "equal")
"""Verdicts that a map shows as a result; every other cell is white."""
NOT_AXES = ("name", "seed", "model.threads", "report.", "arms.")
"""Keys that tell studies apart without being a condition."""
MOST = 2
SIDES = ("baseline", "treatment")
COUNTS = ("collapsed_baseline", "collapsed_treatment", "below_start_baseline", "below_start_treatment")
"""Columns that count runs."""


@dataclass(frozen=True, slots=True)
class MapCell:
    """One study of the map."""

    study: Path
    values: dict[str, Any]
    """Its value on each axis."""
    result: Found | None
    """Its comparison; None where nothing was measured yet."""
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
    for key in keys:
        if not any(key in table for table in tables) and key not in (known := list(known_keys())):
            raise GspoError(f"--axis {key}", "no recipe has this key", nearest(key, known, "name a recipe's key"))
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
    for one, other in combinations(cells, 2):
        if str(one.values) == str(other.values):
            raise GspoError(
                f"{one.study} and {other.study} have the same place on the map",
                f"both have {', '.join(f'{key} = {value}' for key, value in one.values.items())}",
                "leave one out, or choose other axes with --axis",
            )
    return keys, cells


def _studies(name: str, root: Path) -> list[Path]:
    folder = find_folder(name, root)
    if folder and not (folder / "study.json").is_file() and not list(folder.glob("*/run.json")):
        found = {file.parent for file in folder.glob("*/study.json")}
        if found := found | {file.parent.parent for file in folder.glob("*/*/run.json")}:
            return sorted(found)
    return [find_study(name, root).folder]


def _settings(folder: Path) -> dict[str, Any]:
    """Dotted key -> value: of its plan, which holds for all arms, or of its first run if it has none."""
    plans = read_study_file(folder).plans if (folder / "study.json").is_file() else []
    if plans and "recipe" in plans[-1]:
        return flat(plans[-1]["recipe"])
    return flat(read_object(min(folder.glob("*/config.json"))))


def _differing(tables: Sequence[dict[str, Any]]) -> list[str]:
    """Keys with more than one value. A key that only some tables have is at its default in the others."""
    keys = dict.fromkeys(key for table in tables for key in table if not key.startswith(NOT_AXES))
    return [key for key in keys if len({str(_value(table, key)) for table in tables}) > 1]


def _value(table: dict[str, Any], key: str) -> Any:
    return table[key] if key in table else recipe_default(key)


def _measured(folder: Path, values: dict[str, Any], request: ComparisonRequest) -> MapCell:
    if not list(folder.glob("*/run.json")):
        return MapCell(folder, values, None, "no run has begun")
    try:
        return MapCell(folder, values, compare(read_study(folder), request).primary)
    except GspoError as error:
        if error.code != ExitCode.USER_ERROR:
            raise
        return MapCell(folder, values, None, f"{error.message}: {error.why}")


def map_table(axes: Sequence[str], cells: Sequence[MapCell]) -> pd.DataFrame:
    """One row a cell, in the order of its values: the axes' columns, then `effect`, `low`, `high` (treatment minus
    baseline, 95 %, in `unit`), `n` pairs of runs, `verdict`, `decided`, and `COUNTS` of all its runs."""
    rows = [
        {key: _text(cell.values[key]) for key in axes} | {"study": cell.study.name} | _row(cell)
        for cell in sorted(cells, key=lambda cell: [_order(cell.values[key]) for key in axes])
    ]
    return pd.DataFrame(rows)


def map_notes(cells: Sequence[MapCell]) -> list[str]:
    """What speaks against the cells: runs that collapsed or ended below their start, verdicts that depend on them, and
    tuning under other conditions."""
    found = [(cell.study.name, cell.result) for cell in cells if isinstance(cell.result, Compared)]
    if not found:
        return []
    pairs, arms = sum(len(one.seeds) for _, one in found), (found[0][1].baseline, found[0][1].treatment)
    notes = []
    for text, key in (("Collapsed", "collapses"), (BELOW_START, "below_start")):
        counts = [sum(len(getattr(getattr(one, key), side)) for _, one in found) for side in SIDES]
        shown = ", ".join(f"{arm} {count} of {pairs}" for arm, count in zip(arms, counts, strict=True))
        notes.append(f"{text}: {shown} runs.")
    for name, one in found:
        verdict = one.verdict.replace("_", " ")
        notes += [
            f"{name}, {verdict} with N={one.evidence.n}; {text}" for text in sensitivity_texts(one, all_pairs=True)
        ]
    tuning: dict[str, list[str]] = {}
    for name, one in found:
        if one.settings.tuned_elsewhere:
            tuning.setdefault(one.settings.tuned_elsewhere, []).append(name)
    for text, names in tuning.items():
        where = f"in all {len(found)} cells" if len(names) == len(found) else f"in {', '.join(names)}"
        notes.append(f"{text[0].upper()}{text[1:]}, {where}.")
    return notes


def _row(cell: MapCell) -> dict[str, Any]:
    found = cell.result
    if not isinstance(found, Compared):
        verdict = "unmeasured" if found is None else found.verdict
        nothing: dict[str, Any] = dict.fromkeys(("effect", "low", "high"), float("nan"))
        counts: dict[str, Any] = dict.fromkeys(COUNTS, 0)
        return nothing | {"n": 0, "unit": "", "verdict": verdict, "decided": False} | counts
    scale = found.wording.scale
    low, high = found.evidence.ci or (float("nan"), float("nan"))
    return {
        "effect": scale * found.evidence.effect, "low": scale * low, "high": scale * high, "n": found.evidence.n,
        "unit": found.wording.shown_unit, "verdict": found.verdict, "decided": found.verdict in DECIDED,
    } | {
        f"{what}_{side}": len(getattr(runs, side))
        for what, runs in (("collapsed", found.collapses), ("below_start", found.below_start))
        for side in SIDES
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
