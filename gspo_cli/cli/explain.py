"""`gspo report explain`: the glossary of what is logged, and the algorithms' equations."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

import typer

from gspo_cli.cli import completion, console
from gspo_cli.cli.options import Json
from gspo_cli.errors import GspoError


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
    from gspo_cli.runlog.glossary import entry
    from gspo_cli.runlog.schema import METRICS

    if name is None:
        if json_:
            console.print_json([entry(name) for name in METRICS])
        else:
            _print_table(list(METRICS))
        return
    found = entry(name) if "/" in name or name in METRICS else _algorithm(name)
    if json_:
        console.print_json(found)
        return
    for key, value in found.items():
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


def _print_table(names: list[str]) -> None:
    """All metrics, a rule between those of different prefixes; the rest of an entry is `explain NAME`'s."""
    from rich import box
    from rich.table import Table

    from gspo_cli.runlog.glossary import entry

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("metric", "unit", "better", "definition"):
        table.add_column(title, no_wrap=title != "definition")
    for name, following in zip(names, [*names[1:], ""], strict=True):
        told = entry(name)
        last = name.split("/")[0] != following.split("/")[0]
        table.add_row(name, told["unit"], told["better"], told["definition"], end_section=last)
    console.out.print(table, soft_wrap=False)
