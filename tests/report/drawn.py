"""Making the figures of a study, and reading and redrawing them from their files alone."""

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from report_runs import Record

from gspo_cli.report.figures import plots
from gspo_cli.report.figures.plots import FIGURES, PlotResult
from gspo_cli.report.figures.style import SCREEN, Image, Paper
from gspo_cli.report.runs.folders import find_study

TEXTS = ["panel", "metric", "arm", "algorithm", "series"]


def make(study: Path, *names: str, images: Sequence[Image] = ((SCREEN, "svg"),)) -> PlotResult:
    """`gspo report plots` without its command line; with names, these figures alone. An svg is drawn fastest."""
    with patch.object(plots, "FIGURES", {name: FIGURES[name] for name in names or FIGURES}):
        return plots.plot(find_study(str(study), study), images)


def read_csv(study: Path, name: str) -> pd.DataFrame:
    """A figure's table from its csv; `float` reads back exactly what was written."""
    with (study / "figures" / f"{name}.csv").open() as file:
        table = pd.DataFrame(list(csv.DictReader(file)))
    texts = {key: table[key].str.removeprefix("'") for key in table if key in TEXTS}
    numbers = {key: [float(cell) if cell else math.nan for cell in table[key]] for key in table if key not in TEXTS}
    return table.assign(**texts, **numbers)


def side_file(study: Path, name: str) -> dict[str, Any]:
    """A figure's side file."""
    found: dict[str, Any] = json.loads((study / "figures" / f"{name}.json").read_text())
    return found


def redraw(study: Path, name: str, paper: Paper = SCREEN) -> Figure:
    """The figure again, from its csv and the notes of its side file."""
    return FIGURES[name].draw(read_csv(study, name), side_file(study, name)["notes"], paper)


def logged(study: Path, arm: str, seed: int, kind: str, metric: str) -> list[tuple[Record, Any]]:
    """Lines with a value of a metric, read with nothing but json."""
    found = []
    for text in (study / f"{arm}-s{seed}" / "metrics.jsonl").read_text().splitlines():
        record = json.loads(text)
        if record["kind"] == kind and record["metrics"].get(metric) is not None:
            found.append((record, record["metrics"][metric]))
    return found


def assert_nothing_overlaps(figure: Figure) -> None:
    """All panels, legends and notes lie within the figure and apart from each other."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    panels = [ax.get_tightbbox(renderer) for ax in figure.axes]
    boxes = [*panels, *(item.get_window_extent(renderer) for item in (*figure.legends, *figure.texts))]
    for index, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])
