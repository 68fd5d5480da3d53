"""`gspo report explain`: the glossary of metrics and algorithms."""

from typing import Annotated, Any

import typer

from gspo_cli.cli import console, options
from gspo_cli.cli.options import Json
from gspo_cli.errors import GspoError, nearest


def explain(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A metric or an algorithm.",
            show_default="all metrics",
            autocompletion=options.complete_metric_or_algorithm,
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Explain a logged metric, or what an algorithm computes, with its source and published defaults.

    Examples:
        gspo report explain
        gspo report explain clip/token_frac --json
        gspo report explain gspo
    """
    from gspo_cli.runlog.schema import METRICS, entry, legend, search

    if name is None or (found := _entry(name)) is None:
        metrics = list(METRICS) if name is None else search(name)
        if json_:
            return console.print_json([entry(metric) for metric in metrics])
        table = console.table("metric", "unit", "better", "definition")
        for column in table.columns[:-1]:
            column.no_wrap = True
        for metric, following in zip(metrics, [*metrics, ""][1:], strict=True):
            row = entry(metric)
            last = metric.split("/")[0] != following.split("/")[0]  # a rule between prefixes
            table.add_row(metric, row["unit"], row["better"], row["definition"], end_section=last)
        console.print_table(table)
        if letters := legend("; ".join(entry(metric)["definition"] for metric in metrics)):
            console.out.print(letters, soft_wrap=False)
    elif json_:
        console.print_json(found)
    else:
        for key, value in found.items():
            for line in explained(key, value):
                console.out.print(line)


def explained(key: str, value: Any) -> list[str]:
    """An entry as lines: a table as one `name = value` each, by dotted name; none for an empty table or text."""
    if isinstance(value, dict):
        from gspo_cli.config import flat

        rows = [f"{name} = {'none' if one is None else one}" for name, one in flat(value).items() if one != {}]
    else:
        rows = str(value).splitlines()
    return [f"{'' if number else key:<11} {row}".rstrip() for number, row in enumerate(rows)]


def _entry(name: str) -> dict[str, Any] | None:
    """What is known of a metric, or of an algorithm in any spelling; None for a word that some metrics are about.

    Errors: GspoError suggesting the closest algorithm or metric.
    """
    from gspo_cli.runlog.schema import METRICS, entry, search

    algorithms, spelled = options.registered("algorithms", "ALGORITHMS"), name.lower().replace("-", "_")
    if spelled in algorithms:
        return _algorithm_entry(spelled)
    if "/" in name or name in METRICS:
        return entry(name)
    if search(name):
        return None
    raise GspoError(
        f"no metric or algorithm {name!r}",
        f"the algorithms are {', '.join(algorithms)}",
        nearest(name, [*algorithms, *METRICS], "`gspo report explain` lists all metrics"),
    )


def _algorithm_entry(name: str) -> dict[str, Any]:
    """An algorithm's equation, source and published defaults, from its own module."""
    from dataclasses import asdict
    from inspect import cleandoc, getmodule

    from gspo_cli.algorithms import ALGORITHMS
    from gspo_cli.algorithms.overview import COLUMNS, shared
    from gspo_cli.runlog.schema import legend

    algorithm = ALGORITHMS[name]
    loss_doc = cleandoc(algorithm.loss.__doc__ or "")
    what = cleandoc(getmodule(algorithm.Params).__doc__ or "").split("\n\nB = ")[0]
    return {
        "name": name,
        "what": what,
        "letters": legend(what),
        **{COLUMNS[key]: value for key, value in shared(algorithm).items()},
        "defaults": asdict(algorithm.Params()),
        "source": cleandoc(algorithm.Params.__doc__ or ""),
        "switches on": algorithm.PRESET,
        "differs": " ".join(loss_doc.partition("Differs from the paper:")[2].split()),
    }
