"""The user's own algorithm, task or reward: `module:attribute`, found in the working directory or installed."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError


def is_plugin(name: str) -> bool:
    """Whether a name is of the form `module:attribute` (or `module:` for the module itself)."""
    return ":" in name


def load_plugin(name: str, needs: tuple[str, ...]) -> Any:
    """The object that `name` means, checked to have the attributes in `needs`.

    Errors: GspoError when it cannot be imported or lacks one.
    """
    module_name, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
        for part in filter(None, attribute.split(".")):
            found = getattr(found, part)
    except (ImportError, AttributeError, SyntaxError, ValueError) as error:
        raise GspoError(
            f"cannot load {name!r}",
            f"{type(error).__name__}: {error}",
            "the form is module:attribute; the module must lie in the working directory or be installed",
        ) from error
    missing = [need for need in needs if not hasattr(found, need)]
    if missing:
        raise GspoError(
            f"{name!r} has no {missing[0]!r}",
            f"it must have {', '.join(needs)}",
            "see docs/extending.md for a complete example",
        )
    return found


def plugin_source(name: str) -> dict[str, str]:
    """File name and sha256 of a plugin's source, for `run.json`."""
    path = Path(inspect.getfile(importlib.import_module(name.partition(":")[0])))
    return {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
