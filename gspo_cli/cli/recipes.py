"""`gspo recipes`: the shipped ones, and what helps to write one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gspo_cli.cli import completion, console
from gspo_cli.cli.options import Json, JsonLines, RecipeName, Set
from gspo_cli.errors import ExitCode

app = typer.Typer(help="Look at the shipped recipes; write and check your own.", no_args_is_help=True)


@app.command("ls")
@console.command
def ls(json_: JsonLines = False) -> None:
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
    table = console.table("recipe", "about")
    for row in rows:
        table.add_row(row["name"], row["about"])
    console.out.print(table)


@app.command("show")
@console.command
def show(
    name: RecipeName,
    resolved: Annotated[bool, typer.Option("--resolved", help="All keys with their values, as JSON.")] = False,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Show a recipe as it is written, or completely resolved, each arm with its algorithm's published defaults.

    Examples:

        gspo recipes show quickstart

        gspo recipes show quickstart --resolved --set train.lr=2e-4
    """
    from gspo_cli import recipe as recipes

    loaded = recipes.load(name, {}, set_ or [])
    if not (resolved or json_ or set_):
        console.out.print(recipes.find(name).read_text(encoding="utf-8").rstrip())
        return
    from gspo_cli.training.study import resolve_arm

    arms = [*loaded.arms] or [loaded.algo.name]
    complete = {arm: resolve_arm(loaded, arm, here=False)[0].algo.model_dump(mode="json") for arm in arms}
    table = loaded.model_dump(mode="json") | {"algo": complete[arms[0]], "arms": complete}
    if json_:
        console.print_json(table)
    else:
        console.out.print(json.dumps(table, indent=1))


@app.command("copy")
@console.command
def copy(
    name: Annotated[str, typer.Argument(help="A shipped recipe.", autocompletion=completion.recipes)],
    path: Annotated[Path | None, typer.Argument(help="File or folder.", show_default="NAME.toml here")] = None,
    json_: Json = False,
) -> None:
    """Write a shipped recipe as a file of your own; what it extends is found from there.

    Examples:

        gspo recipes copy quickstart mine.toml

        gspo recipes copy claims/reward recipes/
    """
    from gspo_cli.authoring.copying import copy_recipe

    written = copy_recipe(name, path)
    if json_:
        console.print_json({"recipe": str(written)})
    else:
        console.out.print(str(written))


@app.command("validate")
@console.command
def validate(
    recipes: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders of them, or shipped recipes.", metavar="RECIPE...", autocompletion=completion.recipes
        ),
    ],
    json_: JsonLines = False,
) -> None:
    """Check recipes as far as that is possible without a model or the network. Exit code 2 if anything is wrong.

    Modules that a recipe names are imported, which runs their code.

    Examples:

        gspo recipes validate mine.toml

        gspo recipes validate recipes/ --json
    """
    from gspo_cli.authoring.checking import faults, files_of

    found = {path: faults(path) for path in files_of(recipes)}
    for path, errors in found.items():
        if json_:
            about = [{"error": e.message, "why": e.why, "do": e.hint} for e in errors]
            console.print_json({"recipe": str(path), "ok": not errors, "errors": about})
        else:
            verdict = f"{len(errors)} error{'s' if len(errors) > 1 else ''}" if errors else "ok"
            console.out.print("\n".join([f"{path}: {verdict}", *map(str, errors)]))
    if any(found.values()):
        raise typer.Exit(ExitCode.USER_ERROR)


@app.command("schema")
@console.command
def schema(json_: Annotated[bool, typer.Option("--json", help="On one line.")] = False) -> None:
    """Print the JSON schema of recipes, by which an editor completes and checks them (docs/recipes.md).

    Examples:

        gspo recipes schema

        gspo recipes schema --json
    """
    from gspo_cli.authoring.schema import recipe_schema

    if json_:
        console.print_json(recipe_schema())
    else:
        console.out.print(json.dumps(recipe_schema(), indent=1))


@app.command("new")
@console.command
def new(
    folder: Annotated[Path, typer.Argument(help="The folder to make; its name is the recipe's.", metavar="NAME")],
    json_: Json = False,
) -> None:
    """Write a recipe and a Python module with a task, a reward and room for an algorithm, ready to train and change.

    Examples:

        gspo recipes new my-task

        gspo recipes new work/my-task --json
    """
    from gspo_cli.authoring.start_files import new_recipe

    recipe, module = new_recipe(folder)
    if json_:
        console.print_json({"recipe": str(recipe), "module": str(module)})
        return
    console.out.print("\n".join(map(str, (recipe, module))))
    console.note(f"try it: gspo train {recipe} --steps 2")
