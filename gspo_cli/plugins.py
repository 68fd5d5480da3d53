"""User code by `module:attribute`, found beside the recipe that names it, in the working directory, or installed."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError, nearest

LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_search_folders: list[Path] = []
_loaded_folders: list[Path] = []


def add_search_folder(folder: Path) -> None:
    """Search this folder, such as a recipe's, before all others."""
    folder = folder.resolve()
    if folder in _search_folders:
        _search_folders.remove(folder)
    _search_folders.insert(0, folder)


def loaded_folders() -> tuple[str, ...]:
    """The folders that plugins were loaded from, installed ones excluded; a study records them for a later resume."""
    return tuple(map(str, _loaded_folders))


def is_plugin(name: str) -> bool:
    """Whether a name has the form `module:attribute` (or `module:` for the module itself)."""
    return ":" in name


def load_plugin(name: str, needs: tuple[str, ...]) -> Any:
    """Import the object called `name`, which must have the attributes in `needs`.

    Errors: GspoError if it cannot be imported or lacks one of them.
    """
    module_name, _, attribute = name.partition(":")
    make_importable(name, module_name.partition(".")[0])
    with users_code(f"cannot load {name!r}"):
        found: Any = importlib.import_module(module_name)
    for part in filter(None, attribute.split(".")):
        if not hasattr(found, part):
            raise GspoError(
                f"cannot load {name!r}",
                f"{getattr(found, '__file__', None) or found!r} has no {part!r}",
                nearest(part, dir(found), "write module:attribute"),
            )
        found = getattr(found, part)
    missing = [need for need in needs if not hasattr(found, need)]
    if missing:
        raise GspoError(
            f"{name!r} has no {missing[0]!r}",
            f"it needs {', '.join(needs)}",
            "docs/extending.md has a complete example",
        )
    return found


@contextmanager
def users_code(message: str, code: ExitCode = ExitCode.USER_ERROR) -> Iterator[None]:
    """Within the context a user's code runs. Errors: GspoError for whatever it raises, with its file and line."""
    try:
        yield
    except GspoError:
        raise
    except (Exception, SystemExit) as error:  # it may raise anything
        missing = isinstance(error, ModuleNotFoundError)
        raise GspoError(
            message,
            explain(error),
            "write module:attribute, with the module beside the recipe or in the working directory, or install it"
            if missing
            else "correct the code; docs/extending.md has a complete example",
            code,
        ) from error


def explain(error: BaseException) -> str:
    """What a user's code raised, and where: the lines of the user's own files, innermost first, then those that called
    it. Without such a line it is the innermost outside of this package."""
    here = (str(Path(__file__).parent), str(importlib.__file__), "<frozen")
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(here)]
    own = [one for one in frames if not one.filename.startswith(LIBRARIES)] or frames[-1:]
    where = [f"{one.filename}, line {one.lineno}" for one in reversed(own)]
    where[:1] = [f"{place}: {own[-1].line}" for place in where[:1]]
    return f"{type(error).__name__}: {str(error)[:200]}" + (f" ({'; called from '.join(where)})" if where else "")


def make_importable(name: str, top: str) -> None:
    """Let Python search the user's folders after everything installed, so that no user file can replace a library.

    Errors: GspoError if a module in these folders is shadowed by another one of the same name.
    """
    folders = [*_search_folders, Path.cwd()]
    sys.path.extend(str(folder) for folder in folders if str(folder) not in sys.path)
    files = [path for f in folders for path in (f / f"{top}.py", f / top / "__init__.py") if path.is_file()]
    if not files:
        return
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != files[0].resolve():
        raise GspoError(
            f"cannot load {name!r}",
            f"Python finds {(spec and spec.origin) or 'another module'} under that name, not {files[0]}",
            "give your module a name that no other module has",
        )
    folder = files[0].parent if files[0].stem == top else files[0].parent.parent
    if folder not in _loaded_folders:
        _loaded_folders.append(folder)


def plugin_path(name: str) -> Path:
    """The file of a plugin's module. Errors: GspoError, as `load_plugin`."""
    module = name.partition(":")[0]
    return Path(inspect.getfile(load_plugin(f"{module}:", ()))).resolve()


def plugin_source(name: str) -> dict[str, str]:
    """The file name and sha256 of a plugin's source, for `run.json`."""
    path = plugin_path(name)
    return {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
