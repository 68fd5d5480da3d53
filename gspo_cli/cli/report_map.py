"""`gspo report map`: its options."""

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gspo_cli.cli import console
from gspo_cli.cli.options import FigureWidth, Format, Json, Results

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-\d+)?")


def effect_map(
    studies: Annotated[list[str], typer.Argument(help="A sweep, or studies that differ in one or two recipe keys.")],
    out: Results = Path("results"),
    axis: Annotated[
        list[str] | None, typer.Option(help="A recipe key; repeat for two.", show_default="where the studies differ")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="Metric to judge by: reward/mean:last10.")] = None,
    baseline: Annotated[str | None, typer.Option(help="Arm to compare with.")] = None,
    treatment: Annotated[str | None, typer.Option(help="The arm compared.")] = None,
    figures: Annotated[Path, typer.Option(help="Folder for csv and figure.")] = Path("map"),
    format_: Format = None,
    paper: FigureWidth = None,
    json_: Json = False,
) -> None:
    """Draw where the treatment beats the baseline: one comparison per study, against one or two recipe keys.

    A cell is what `gspo report compare` finds in its study. Cells without a result, or without a decided one, stay
    white.

    Examples:
        gspo report map my-sweep
        gspo report map lag-0 lag-1 lag-4 --axis rollout.max_lag --json
    """
    from gspo_cli.report.compare.effect_map import map_cells, map_notes, map_table
    from gspo_cli.report.compare.result import Compared, to_json
    from gspo_cli.report.compare.study import ComparisonRequest
    from gspo_cli.report.figures.effect_map import TITLE, draw
    from gspo_cli.report.figures.save import save
    from gspo_cli.report.figures.style import requested_images

    images = requested_images(format_, paper)
    request = ComparisonRequest(metric=metric, baseline=baseline, treatment=treatment)
    axes, cells = map_cells(studies, out, request, axis or ())
    table = map_table(axes, cells)
    results = [cell.result for cell in cells if cell.result]
    known = results[0] if results else None
    higher = not (isinstance(known, Compared) and known.wording.better == "lower")
    metric = known.metric if known else None
    arms = (known.baseline, known.treatment) if known else ("baseline", "treatment")
    notes = [
        f"Each cell: {metric or 'no metric yet'}, {arms[1]} minus {arms[0]}, with its 95 % interval over N "
        "pairs of seeds, as `gspo report compare` finds it. "
        + ("Open circles: undecided." if len(axes) == 1 else "White: undecided or unmeasured."),
        *merged(one.settings.synthetic for one in results if isinstance(one, Compared) and one.settings.synthetic),
        *map_notes(cells),
    ]
    side = {"figure": "map", "axes": axes, "metric": metric, "arms": list(arms), "notes": notes}
    files = save(figures, "map", TITLE, table, side, partial(draw, table, axes, arms, notes), images).paths
    rows = [
        {
            "study": str(cell.study), "values": cell.values, "why": cell.why or None,
            "comparison": cell.result and {key: to_json(cell.result).get(key) for key in KEPT},
        }
        for cell in cells
    ]  # fmt: skip
    if json_:
        return console.print_json(side | {"cells": rows, "files": [str(path) for path in files]})
    shown = console.table(*axes, "N", "effect", "95 % interval", "verdict")
    for _, row in table.iterrows():
        interval = f"[{row['low']:+.3g}, {row['high']:+.3g}]" if row["low"] == row["low"] else "n/a"
        effect = f"{row['effect']:+.3g} {row['unit']}" if row["effect"] == row["effect"] else "n/a"
        verdict = row["verdict"].replace("_", " ")
        if verdict == "better":
            verdict = f"{arms[(row['effect'] > 0) == higher]} better"
        shown.add_row(*(row[key] for key in axes), str(row["n"]), effect, interval, verdict)
    console.print_table(shown)
    console.note(*(f"{cell.study.name}: {cell.why}" for cell in cells if cell.why), *notes)
    for path in files:
        console.out.print(str(path))


KEPT = ("verdict", "sentence", "metric", "baseline", "treatment", "n", "n_pairs", "effect", "ci", "unit", "points",
        "collapses", "below_start", "sensitivity")  # fmt: skip


def merged(texts: Iterable[str]) -> list[str]:
    """Each sentence once; those that differ in their one number as one sentence with all of them."""
    values: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        sizes = NUMBER.findall(text)
        values.setdefault(NUMBER.sub("{}", text) if len(sizes) == 1 else text, []).extend(sizes)
    return [text.format(", ".join(sizes)) if "{}" in text else text for text, sizes in values.items()]
