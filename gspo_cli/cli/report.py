"""`gspo report`: figures of a study, and the glossary of what is logged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gspo_cli.cli import console
from gspo_cli.cli.claims import claims
from gspo_cli.cli.compare import compare
from gspo_cli.cli.explain import explain
from gspo_cli.cli.options import Json, Results, Study

app = typer.Typer(help="Figures and statistics of runs, and the glossary of what is logged.", no_args_is_help=True)
app.command()(compare)
app.command()(claims)
app.command()(explain)

Format = Annotated[
    str | None,
    typer.Option("--format", help="svg, png, pdf, or several with commas.", show_default="svg,png; pdf for a paper"),
]
For = Annotated[
    str | None,
    typer.Option("--paper", help="column (3.25 in) or page (7 in): notes in a .tex, not in the picture."),
]


@app.command()
@console.command
def plots(
    study: Study = None,
    out: Results = Path("results"),
    format_: Format = None,
    paper: For = None,
    json_: Json = False,
) -> None:
    """Draw reward, clip fractions, expert volatility and Routing Replay of a study, as svg, png, csv and a side file.

    Examples:

        gspo report plots

        gspo report plots results/quickstart-20260101-120000 --json

        gspo report plots my-study --paper column --format pdf
    """
    from gspo_cli.report.folders import find_study
    from gspo_cli.report.paper import asked
    from gspo_cli.report.plots import plot

    images = asked(format_, paper)
    found = find_study(study, out)
    report = plot(found, images)
    if json_:
        files = {name: [str(path) for path in paths] for name, paths in report.files.items()}
        about = {"figures": files, "captions": report.captions, "left_out": report.left_out, "notes": report.notes}
        console.print_json({"study": str(found.folder), **about})
        return
    for line in [*report.notes, *(f"no figure {name}: {why}" for name, why in report.left_out.items())]:
        console.note(line)
    for name, text in report.captions.items() if paper else ():
        console.note(f"caption of {name}: {text}")
    for path in (path for paths in report.files.values() for path in paths):
        console.out.print(str(path))


@app.command()
@console.command
def html(
    study: Study = None,
    out: Results = Path("results"),
    json_: Json = False,
) -> None:
    """Write one page with verdicts, figures, claims, responses side by side and provenance; no network, no script.

    Examples:

        gspo report html

        gspo report html results/quickstart-20260101-120000 --json
    """
    from gspo_cli.report.folders import find_study
    from gspo_cli.report.html import report_html

    path = report_html(find_study(study, out))
    if json_:
        console.print_json({"page": str(path)})
    else:
        console.out.print(str(path))


@app.command()
@console.command
def batch(
    rollout: Annotated[Path, typer.Argument(help="A stored rollout batch: a parquet file or a folder that holds one.")],
    model: Annotated[str, typer.Option("--model", help="The policy that sampled it: a Hugging Face folder or name.")],
    against: Annotated[
        str | None,
        typer.Option("--against", help="The policy some updates later.", show_default="none: every ratio is 1"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the figures.", show_default="batch-report beside the batch"),
    ] = None,
    format_: Format = None,
    paper: For = None,
    json_: Json = False,
) -> None:
    """Compare every algorithm's loss, weights, clips and gradient on one stored batch, with three figures.

    Examples:

        gspo report batch my-batch --model ./start

        gspo report batch run/rollouts/step_000001.parquet --model ./start --against run/model --json
    """
    import torch

    from gspo_cli.models.torch_setup import prepare_torch
    from gspo_cli.report.batch import report_batch
    from gspo_cli.report.batch_tables import tables
    from gspo_cli.report.paper import asked

    images = asked(format_, paper)
    prepare_torch(torch.get_num_threads())
    found = report_batch(rollout, model, against, out, images)
    if json_:
        console.print_json(found)
        return
    for table in tables(found):
        console.out.print("\n".join([*table.lines(), ""]))
    for line in found["notes"]:
        console.note(line)
    for paths in found["figures"].values():
        for path in paths:
            console.out.print(path)
