"""`gspo recipes ls` and `gspo recipes show`."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from gspo_cli.cli import console
from gspo_cli.cli.options import Set

app = typer.Typer(help="Look at the shipped recipes.", no_args_is_help=True)


@app.command("ls")
@console.command
def ls(json_: Annotated[bool, typer.Option("--json", help="One JSON object a recipe.")] = False) -> None:
    """List the shipped recipes with their first comment line.

    Examples:

        gspo recipes ls

        gspo recipes ls --json
    """
    from gspo_cli import recipe as recipes

    rows = []
    for name in recipes.names():
        first = recipes.find(name).read_text(encoding="utf-8").splitlines()[0]
        rows.append({"name": name, "about": first.lstrip("# ")})
    if json_:
        console.print_json(rows)
        return
    table = Table("recipe", "about")
    for row in rows:
        table.add_row(row["name"], row["about"])
    console.out.print(table)


@app.command("show")
@console.command
def show(
    name: Annotated[str, typer.Argument(help="A recipe's name or file.")],
    resolved: Annotated[bool, typer.Option(help="All keys with their values, as JSON.")] = False,
    set_: Set = None,
    json_: Annotated[bool, typer.Option("--json", help="Same as --resolved.")] = False,
) -> None:
    """Show a recipe as it is written, or completely resolved, each arm with its algorithm's published defaults.

    Examples:

        gspo recipes show quickstart

        gspo recipes show quickstart --resolved --set train.lr=2e-4
    """
    from gspo_cli import recipe as recipes

    loaded = recipes.load(name, {}, set_ or [])
    if resolved or json_ or set_:
        from gspo_cli.training.study import resolve_arm

        arms = [*loaded.arms] or [loaded.algo.name]
        complete = {arm: resolve_arm(loaded, arm, here=False)[0].algo.model_dump(mode="json") for arm in arms}
        table = loaded.model_dump(mode="json") | {"algo": complete[arms[0]], "arms": complete}
        console.out.print(json.dumps(table, indent=1))
    else:
        console.out.print(recipes.find(name).read_text(encoding="utf-8").rstrip())
