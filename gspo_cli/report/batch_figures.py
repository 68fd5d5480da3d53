"""The three figures of one batch, each as svg, png, csv and side file."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from gspo_cli import __version__
from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.report import batch_length_figure, batch_ratio_figure, batch_weight_figure
from gspo_cli.report.batch_measure import Measured
from gspo_cli.report.paper import USUAL, Image
from gspo_cli.report.save import save

FIGURES = {
    "batch-ratios": batch_ratio_figure,
    "batch-weights": batch_weight_figure,
    "batch-lengths": batch_length_figure,
}
"""Name -> module with `table(measured)`, `draw(measured, table, notes)` and `notes(measured)`."""


def draw_all(
    measured: Measured, remarks: list[str], folder: Path, images: Collection[Image] = USUAL
) -> dict[str, list[Path]]:
    """Draws every figure into a folder; `remarks` go into the side files. Returns each figure's files."""
    files = {}
    for name, module in FIGURES.items():
        table, lines = module.table(measured), [*module.notes(measured), about(measured)]
        side = _side_file(measured, name, [*lines, *remarks])
        draw = partial(module.draw, measured, table, lines)
        files[name] = save(folder, name, table, side, draw, images).paths
    return files


def about(measured: Measured) -> str:
    """The batch and the policies in one sentence."""
    batch = measured.batch
    where = (
        "on policy (no --against): every ratio is 1"
        if measured.later is None
        else f"ratios of policy {measured.later.sha256[:12]}"
    )
    return (
        f"{len(batch.responses)} responses in {batch.num_groups} groups, {measured.spread.tokens} tokens, sampled by "
        f"policy {batch.model_sha256[:12]}; {where}."
    )


def _side_file(measured: Measured, name: str, lines: list[str]) -> dict[str, Any]:
    """What the figure was made of; no time and no path, so that the same inputs give the same bytes anywhere."""
    batch = measured.batch
    return {
        "figure": name,
        "gspo": __version__,
        "batch": {"file": batch.path.name, "sha256": batch.sha256, "groups": batch.num_groups},
        "model_sha256": measured.sampling.sha256,
        "against_sha256": measured.later.sha256 if measured.later else None,
        "tokenizer_sha256": batch.tokenizer_sha256,
        "temperature": batch.temperature,
        "algorithms": list(ALGORITHMS),
        "notes": lines,
    }
