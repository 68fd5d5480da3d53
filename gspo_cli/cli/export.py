"""`gspo runs export`: a study's logs for TensorBoard or Weights & Biases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gspo_cli.cli import console
from gspo_cli.cli.options import Json, Results, Study


@console.command
def export(
    study: Study = None,
    to: Annotated[str, typer.Option("--to", help="tensorboard, or wandb (an offline run).")] = "tensorboard",
    follow: Annotated[bool, typer.Option("--follow", help="Keep up with running runs until Ctrl-C.")] = False,
    out: Results = Path("results"),
    json_: Json = False,
) -> None:
    """Mirror the logs of a study for a tracker, into <study>/tensorboard or <study>/wandb; the log stays the truth.

    Examples:

        gspo runs export --to tensorboard

        gspo runs export results/quickstart-20260101-120000 --to wandb --json

        gspo runs export my-study --follow
    """
    from gspo_cli.exporters import EXPORTERS, mirror
    from gspo_cli.report.folders import find_study

    mirror.check(to)
    folder = find_study(study, out).folder
    how = EXPORTERS[to].how_to_read(mirror.place(folder, to))
    if follow:
        console.note(f"following {folder} until Ctrl-C; {how}")
        mirror.follow(folder, to)
    done = mirror.export(folder, to)
    if json_:
        rows = [{"run": one.run.name, "rows": one.num_rows, "folder": str(one.folder)} for one in done]
        console.print_json({"study": str(folder), "to": to, "runs": rows, "read": how})
        return
    for one in done:
        console.out.print(f"{one.folder}: {one.num_rows} rows")
    console.note(how)
