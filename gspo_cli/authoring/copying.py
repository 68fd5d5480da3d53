"""A shipped recipe as a file of one's own."""

from __future__ import annotations

import re
from pathlib import Path

from gspo_cli.errors import GspoError
from gspo_cli.recipe import find, is_shipped, names
from gspo_cli.runlog.fs import write_text

EXTENDS = re.compile(r"^extends\s*=\s*([\"'])(?P<parent>[^\"']+)\1", re.MULTILINE)


def copy_recipe(name: str, target: Path | None) -> Path:
    """Writes a shipped recipe to a file, or into a folder under its own name, and gives the file. What it extends is
    named so that it is found from anywhere.

    Errors: GspoError when the file exists, or when one beside it would be extended in place of the shipped recipe.
    """
    source = find(name)
    if not is_shipped(source):
        raise GspoError(f"{source} is a file of yours", "`copy` writes shipped recipes", f"cp {source} NEW.toml")
    target = target or Path()
    if target.is_dir():
        target = target / source.name
    if target.suffix != ".toml":
        raise GspoError(f"{target} is no recipe's name", "a recipe's file ends with .toml", f"{target}.toml")
    if target.exists():
        raise GspoError(f"{target} exists", "a file of yours is not overwritten", "give another PATH, or remove it")
    text = source.read_text(encoding="utf-8")
    if found := EXTENDS.search(text):
        parent = _shipped_name(source, found["parent"])
        in_the_way = target.parent / f"{parent}.toml"
        if in_the_way.exists() or in_the_way.resolve() == target.resolve():
            raise GspoError(
                f"{target} would extend {in_the_way}",
                f"{name} extends the shipped recipe {parent!r}, and a file beside a recipe comes first",
                "give another PATH",
            )
        text = text[: found.start("parent")] + parent + text[found.end("parent") :]
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, text)
    return target


def _shipped_name(child: Path, parent: str) -> str:
    """The name by which a shipped recipe's parent, which may lie beside it, is found from anywhere."""
    beside = child.parent / f"{parent}.toml"
    return (
        next(name for name in names() if beside.is_file() and find(name).samefile(beside))
        if beside.is_file()
        else parent
    )
