"""`gspo cold-start`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gspo_cli.cli import console
from gspo_cli.cli.options import RECIPE, Json, Set, TrustCode
from gspo_cli.errors import GspoError


@console.command
def cold_start(
    recipe: RECIPE = "quickstart",
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("cold-start"),
    set_: Set = None,
    trust_remote_code: TrustCode = None,
    json_: Json = False,
) -> None:
    """Build the supervised start model of a recipe on its own, from the task's demonstrations or one's own file.

    Examples:

        gspo cold-start --out my-start

        gspo cold-start quickstart --set cold_start.path=demos.jsonl --out my-start
    """
    from gspo_cli import recipe as recipes
    from gspo_cli.cli.bars import ColdStartBar

    loaded = recipes.load(recipe, {}, set_ or [])
    if loaded.cold_start is None:
        raise GspoError(f"recipe {recipe} has no [cold_start]", "there is nothing to build", "add the table")
    if out.exists():
        raise GspoError(f"{out} exists", "a model folder is not overwritten", "choose another --out")

    from gspo_cli.models.foreign_code import allow_code
    from gspo_cli.models.torch_setup import prepare_torch
    from gspo_cli.training.cold_start import build

    allow_code(trust_remote_code)
    prepare_torch(loaded.model.threads)
    build(loaded, out, ColdStartBar())
    if json_:
        console.print_json({"model": str(out)})
    else:
        console.out.print(str(out))
