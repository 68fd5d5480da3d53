"""`gspo report`: figures of a study, and the glossary of what is logged."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any

import typer

from gspo_cli.cli import completion, console
from gspo_cli.cli.claims import claims
from gspo_cli.cli.compare import compare
from gspo_cli.cli.options import Json, Results, Study
from gspo_cli.errors import GspoError

app = typer.Typer(help="Figures and statistics of runs, and the glossary of what is logged.", no_args_is_help=True)
app.command()(compare)
app.command()(claims)


@app.command()
@console.command
def plots(
    study: Annotated[
        str | None, typer.Argument(help="Study folder, run folder, or a name under --out.", show_default="the newest")
    ] = None,
    out: Results = Path("results"),
    json_: Json = False,
) -> None:
    """Draw reward, clip fractions, expert volatility and Routing Replay of a study, as svg, png, csv and a side file.

    Examples:

        gspo report plots

        gspo report plots results/quickstart-20260101-120000 --json
    """
    from gspo_cli.report.folders import find_study
    from gspo_cli.report.plots import plot

    found = find_study(study, out)
    report = plot(found)
    if json_:
        files = {name: [str(path) for path in paths] for name, paths in report.files.items()}
        about = {"figures": files, "left_out": report.left_out, "notes": report.notes}
        console.print_json({"study": str(found.folder), **about})
        return
    for line in [*report.notes, *(f"no figure {name}: {why}" for name, why in report.left_out.items())]:
        console.note(line)
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

    prepare_torch(torch.get_num_threads())
    found = report_batch(rollout, model, against, out)
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


@app.command()
@console.command
def explain(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A logged name or an algorithm.", show_default="all metrics", autocompletion=completion.explained
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Say what a logged metric means, or what an algorithm computes, with its source and published defaults.

    Examples:

        gspo report explain

        gspo report explain clip/token_frac --json

        gspo report explain gspo
    """
    from gspo_cli.runlog.schema import METRICS

    if name is None:
        if json_:
            console.print_json([_entry(name) for name in METRICS])
        else:
            _print_table(list(METRICS))
        return
    entry = _entry(name) if "/" in name or name in METRICS else _algorithm(name)
    if json_:
        console.print_json(entry)
        return
    for key, value in entry.items():
        console.out.print(f"{key:<11} {value}")


def _algorithm(name: str) -> dict[str, Any]:
    """An algorithm's equation, source and published setting, from its own file.

    Errors: GspoError with the nearest algorithm or metric.
    """
    from dataclasses import asdict
    from inspect import cleandoc

    from gspo_cli.algorithms import ALGORITHMS
    from gspo_cli.runlog.schema import METRICS

    if name not in ALGORITHMS:
        near = difflib.get_close_matches(name, [*ALGORITHMS, *METRICS], n=1, cutoff=0.5)
        raise GspoError(
            f"no metric or algorithm {name!r}",
            f"the algorithms are {', '.join(ALGORITHMS)}",
            f"did you mean {near[0]!r}?" if near else "`gspo report explain` lists all metrics",
        )
    module = ALGORITHMS[name]
    loss_doc = cleandoc(module.loss.__doc__ or "")
    return {
        "name": name,
        "what": cleandoc(module.__doc__ or "").split("\n\nB = ")[0],
        "ratio of": module.UNIT,
        "reduction": module.REDUCTION,
        "defaults": asdict(module.Params()),
        "source": cleandoc(module.Params.__doc__ or ""),
        "switches on": getattr(module, "PRESET", {}),
        "differs": " ".join(loss_doc.partition("Differs from the paper:")[2].split()),
    }


def _entry(name: str) -> dict[str, Any]:
    """A metric's glossary entry. Errors: GspoError with the nearest name."""
    from gspo_cli.runlog.schema import metric

    found = metric(name)
    _, layer, number = name.rpartition("/layer_")
    each = f"; each MoE layer alone (step): {name}/layer_NN" if found.layers else ""
    return {
        "name": name,
        "unit": found.unit,
        "definition": f"{found.definition}; layer {number} alone" if layer else found.definition,
        "reduction": found.reduction,
        "lines": "step" if layer else found.lines + each,
        "better": found.better,
    }


def _print_table(names: list[str]) -> None:
    """All metrics, a rule between those of different prefixes; the rest of an entry is `explain NAME`'s."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("metric", "unit", "better", "definition"):
        table.add_column(title, no_wrap=title != "definition")
    for name, following in zip(names, [*names[1:], ""], strict=True):
        entry = _entry(name)
        last = name.split("/")[0] != following.split("/")[0]
        table.add_row(name, entry["unit"], entry["better"], entry["definition"], end_section=last)
    console.out.print(table, soft_wrap=False)
