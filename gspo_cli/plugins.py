"""The user's own algorithm, task or reward: `module:attribute`, found beside the recipe that names it, in the working
directory, or installed."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError

_beside: list[Path] = []
_used: list[Path] = []


def look_beside(folder: Path) -> None:
    """From now on modules are looked for in this folder first: a recipe's."""
    folder = folder.resolve()
    if folder in _beside:
        _beside.remove(folder)
    _beside.insert(0, folder)


def used_folders() -> tuple[str, ...]:
    """Where the modules that were loaded lie, but for installed ones; a study keeps this, to be finished later."""
    return tuple(map(str, _used))


def is_plugin(name: str) -> bool:
    """Whether a name is of the form `module:attribute` (or `module:` for the module itself)."""
    return ":" in name


def load_plugin(name: str, needs: tuple[str, ...]) -> Any:
    """The object that `name` means, checked to have the attributes in `needs`.

    Errors: GspoError when it cannot be imported or lacks one.
    """
    module_name, _, attribute = name.partition(":")
    _make_importable(name, module_name.partition(".")[0])
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # the user's own code: whatever it raises, the user can mend it
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if last.filename.startswith("<frozen") else f" ({last.filename}, line {last.lineno})"
        raise GspoError(
            f"cannot load {name!r}",
            f"{type(error).__name__}: {error}{where}",
            "the form is module:attribute; the module lies beside the recipe or in the working directory",
        ) from error
    for part in filter(None, attribute.split(".")):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), n=1)
            raise GspoError(
                f"cannot load {name!r}",
                f"{getattr(found, '__file__', None) or found!r} has no {part!r}",
                f"did you mean {near[0]!r}?" if near else "the form is module:attribute",
            )
        found = getattr(found, part)
    missing = [need for need in needs if not hasattr(found, need)]
    if missing:
        raise GspoError(
            f"{name!r} has no {missing[0]!r}",
            f"it must have {', '.join(needs)}",
            "see docs/extending.md for a complete example",
        )
    return found


def _make_importable(name: str, top: str) -> None:
    """Lets Python find modules in the user's folders, after everything installed: a file beside a recipe can never take
    the place of a library.

    Errors: GspoError when a module lies there that something else of the same name hides.
    """
    places = [*_beside, Path.cwd()]
    sys.path.extend(str(place) for place in places if str(place) not in sys.path)
    files = [file for place in places for file in (place / f"{top}.py", place / top / "__init__.py") if file.is_file()]
    if not files:
        return
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != files[0].resolve():
        raise GspoError(
            f"cannot load {name!r}",
            f"{files[0]} is meant, but Python finds {(spec and spec.origin) or 'another module'} under that name",
            "give your module a name that nothing else has",
        )
    folder = files[0].parent if files[0].stem == top else files[0].parent.parent
    if folder not in _used:
        _used.append(folder)


def plugin_source(name: str) -> dict[str, str]:
    """File name and sha256 of a plugin's source, for `run.json`."""
    path = Path(inspect.getfile(importlib.import_module(name.partition(":")[0])))
    return {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
