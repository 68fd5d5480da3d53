"""Several measurements of the same request, with different seeds, as one: table, notes and figure, without a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.instruments.fidelity.figure import TITLE, draw
from gspo_cli.instruments.fidelity.pool import table_of_rows
from gspo_cli.instruments.fidelity.report import FILE, records, write_rows
from gspo_cli.report.figures.save import save
from gspo_cli.report.figures.style import USUAL, Image
from gspo_cli.runlog.strict_json import read_object

SAME = ("gspo", "model_sha256", "recipe", "updates_by", "batches", "reference", "responses", "baseline")
"""What must be equal in all files, besides the arms, updates and noises of their rows."""


def merge_fidelity(files: Sequence[Path], out: Path, images: Collection[Image] = USUAL) -> dict[str, Any]:
    """Writes csv, figure and rows into `out` as `report_fidelity` does, from files that it wrote (or their folders).

    Errors: GspoError for files of different requests or with a seed in common; nothing is written then.
    """
    paths = [file / f"{FILE}-rows.json" if file.is_dir() else file for file in files]
    found = [read_object(path) for path in paths]
    first = found[0]
    for path, other in zip(paths, found, strict=True):
        if not isinstance(other.get("rows"), list) or any(key not in other for key in SAME):
            raise GspoError(
                f"{path} is no measurement", "it is not what `gspo report fidelity` writes", f"{FILE}-rows.json"
            )
        different = [f"they differ in {key}: {first[key]} and {other[key]}" for key in SAME if other[key] != first[key]]
        if _cells(other) != _cells(first):
            different.append("they have other arms, updates or noises")
        if different:
            raise GspoError(
                f"{paths[0]} and {path} cannot be pooled",
                different[0],
                "pool measurements that differ in their seeds alone",
            )
    seeds = [seed for one in found for seed in one["seeds"]]
    if len(set(seeds)) < len(seeds):
        raise GspoError(
            "a seed is in two files", f"their seeds are {', '.join(map(str, seeds))}", "name each measurement once"
        )
    table = table_of_rows([row for one in found for row in one["rows"] if row["seed"] is not None])
    notes = [text for text in first["notes"] if not text.startswith(("Intervals:", "A larger"))]
    notes.append(
        f"Intervals: 95 %, Student's t over {len(seeds)} seeds, each with its own updates, batches and reference; "
        f"pooled from {len(found)} measurements."
    )
    side = {key: first[key] for key in first if key not in ("rows", "baseline")} | {
        "seeds": sorted(seeds),
        "notes": notes,
    }
    saved = save(out, FILE, TITLE, table, side, partial(draw, table, notes), images).paths
    result = side | {"baseline": first["baseline"], "rows": records(table)}
    write_rows(out, result)
    return result | {"files": [str(path) for path in saved]}


def _cells(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    return list(dict.fromkeys((row["updates"], row["noise"], row["arm"]) for row in found["rows"]))
