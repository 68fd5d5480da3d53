"""`gspo recipes new`: a recipe and a module that train at once, to be changed into one's own."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from string import Template

from gspo_cli.errors import GspoError
from gspo_cli.runlog.folder import NAME
from gspo_cli.runlog.fs import write_text

TEMPLATES = Path(__file__).parent / "start"


def new_recipe(folder: Path) -> tuple[Path, Path]:
    """Writes `recipe.toml` and a module named after the folder, and gives both.

    Errors: GspoError when the folder exists or its name cannot be a study's and a module's.
    """
    name, module = folder.name, re.sub(r"\W", "_", folder.name)
    if not NAME.fullmatch(name) or not module.isidentifier():
        raise GspoError(
            f"{name!r} cannot name a recipe and a module",
            "a letter comes first, then letters, digits, '.', '_' and '-'",
            "e.g. gspo recipes new my-task",
        )
    if folder.exists():
        raise GspoError(f"{folder} exists", "a folder of yours is not overwritten", "choose another name")
    if importlib.util.find_spec(module) is not None:
        raise GspoError(
            f"{name!r} would make a module {module!r}",
            "one of that name is installed already",
            f"another name, such as my-{name}",
        )
    folder.mkdir(parents=True)
    recipe, code = folder / "recipe.toml", folder / f"{module}.py"
    for path, template in ((code, "module.py.in"), (recipe, "recipe.toml.in")):
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        write_text(path, Template(text).substitute(name=name, module=module))
    return recipe, code
