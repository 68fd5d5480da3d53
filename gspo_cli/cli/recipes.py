"""`gspo recipes`: inspect the shipped recipes; write and check your own."""

import json
import re
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer

from gspo_cli.cli import console, options
from gspo_cli.cli.options import Json, JsonLines, RecipeArgument, Set
from gspo_cli.errors import ExitCode, quoted

app = console.Commands(help="Inspect the shipped recipes; write and check your own.", no_args_is_help=True)


@app.command()
def ls(json_: JsonLines = False) -> None:
    """List the shipped recipes with a one-line description.

    Examples:
        gspo recipes ls
        gspo recipes ls --json
    """
    from gspo_cli.recipe import find, names

    rows = [{"name": name, "about": first_sentence(find(name).read_text(encoding="utf-8"))} for name in names()]
    if json_:
        return console.print_json(rows)
    width = max(len(row["name"]) for row in rows)
    for row in rows:  # no table: it would cut the sentences at the width of a terminal
        console.out.print(f"{row['name']:<{width}}", style="cyan", end="  ")
        console.out.print(row["about"])


def first_sentence(text: str) -> str:
    """What a recipe is: the first sentence of the comment at its head."""
    lines = takewhile(lambda line: line.startswith("#"), text.splitlines())
    comment = " ".join(line.lstrip("# ") for line in lines)
    return re.split(r"(?<=[.?)])\s+(?=[A-Z])", comment, maxsplit=1)[0]


@app.command()
def show(
    recipe: RecipeArgument,
    resolved: Annotated[bool, typer.Option("--resolved", help="Print every key and its value as JSON.")] = False,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Show a recipe as written, or fully resolved, with each arm's published defaults.

    Examples:
        gspo recipes show quickstart
        gspo recipes show quickstart --resolved --set train.lr=2e-4
    """
    from gspo_cli.config import flat
    from gspo_cli.recipe import default_arms, find, known_keys, load

    loaded = load(recipe, {}, set_ or [])
    if not (resolved or json_ or set_):
        console.out.print(find(recipe).read_text(encoding="utf-8").rstrip())
        return

    from gspo_cli.training.study.arms import arm_notes, plan_runs  # torch: only to resolve

    arms = default_arms(loaded)
    complete = {
        run.arm: run.recipe.algo.model_dump(mode="json") for run in plan_runs(loaded, arms, [loaded.seed], here=False)
    }
    console.note(*arm_notes(loaded, arms))
    table = loaded.model_dump(mode="json") | {"algo": complete[arms[0]], "arms": complete}
    console.print_result(table, json_, json.dumps(table, indent=1))
    absent = [key for key in known_keys() if table_of(key) in flat(table)]
    console.note(f"keys of tables that it does not have: {', '.join(absent)}")


def table_of(key: str) -> str:
    """The table that a dotted key is in."""
    return key.rpartition(".")[0]


@app.command()
def copy(
    name: Annotated[str, typer.Argument(help="A shipped recipe.", autocompletion=options.complete_recipe)],
    path: Annotated[Path | None, typer.Argument(help="File or folder to write.", show_default="NAME.toml here")] = None,
    json_: Json = False,
) -> None:
    """Copy a shipped recipe to a file of your own, where what it extends is still found.

    Examples:
        gspo recipes copy quickstart mine.toml
        gspo recipes copy claims/reward recipes/
    """
    from gspo_cli.authoring import copy_recipe

    console.print_result({"recipe": str(copy_recipe(name, path))}, json_)


@app.command()
def validate(
    recipes: Annotated[
        list[str],
        typer.Argument(help="Files, folders of them, or shipped recipes.", autocompletion=options.complete_recipe),
    ],
    json_: JsonLines = False,
) -> None:
    """Check recipes as far as possible without a model or the network. Exit code 2 if one has errors.

    Modules that a recipe names are imported, which runs their code.

    Examples:
        gspo recipes validate mine.toml
        gspo recipes validate recipes/ --json
    """
    from gspo_cli.authoring import find_errors, recipe_files

    errors = {path: find_errors(path) for path in recipe_files(recipes)}
    for path, found in errors.items():
        if json_:
            console.print_json({"recipe": str(path), "ok": not found, "errors": [e.as_dict() for e in found]})
        else:
            verdict = console.plural(len(found), "error") if found else "ok"
            console.out.print("\n".join([f"{path}: {verdict}", *map(str, found)]))
    if any(errors.values()):
        raise typer.Exit(ExitCode.USER_ERROR)


@app.command()
def schema(json_: Annotated[bool, typer.Option("--json", help="Print it on one line.")] = False) -> None:
    """Print the JSON schema of recipes, with which an editor completes and checks them (docs/recipes.md).

    Examples:
        gspo recipes schema
        gspo recipes schema --json
    """
    from gspo_cli.authoring import recipe_schema

    console.print_result(recipe_schema(), json_, json.dumps(recipe_schema(), indent=1))


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="Folder to create; its name is the recipe's.", metavar="NAME")],
    data: Annotated[
        str | None,
        typer.Option(help="Your data (json, jsonl, parquet, csv, a folder, a hub name): look at them first."),
    ] = None,
    json_: Json = False,
) -> None:
    """Create a recipe and a Python module with a task, a reward and room for an algorithm, ready to train.

    With --data, a recipe for these rows: which column is the prompt, which the answer, and which reward fits is
    guessed, shown and written with comments.

    Examples:
        gspo recipes new my-task
        gspo recipes new work/my-task --json
        gspo recipes new my-data --data train.jsonl
    """
    from gspo_cli.authoring import new_data_recipe, new_recipe

    if data is None:
        recipe, module = new_recipe(folder)
        return console.print_result({"recipe": str(recipe), "module": str(module)}, json_, f"{recipe}\n{module}")
    made = new_data_recipe(folder, data)
    lines = [f"{data}: {made.rows} rows; the columns are {', '.join(made.columns)}"]
    for number, row in enumerate(made.shown, start=1):
        lines += [f"row {number}:", *(f"    {name} = {value}" for name, value in row.items())]
    first = quoted(made.files[0])
    lines += [
        f"guessed: the prompt is {made.guessed['prompt']}, the answer {made.guessed['answer'] or 'in no column'}, "
        f"the reward {made.guessed['reward']}" + ("" if len(made.files) == 1 else " (write it)"),
        f"held out: {made.held_out} of {made.rows} rows",
        *made.files,
        f"next: gspo rollout {first} --show-prompt --model FOLDER; gspo train {first} --model FOLDER",
    ]
    console.print_result(asdict(made), json_, "\n".join(lines))
