"""Recipes: found by name or path, merged along `extends`, changed by `--set`, checked before anything else happens.

Precedence: class defaults < `extends` chain < the recipe < named options < `--set`.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, is_dataclass
from datetime import date, time
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError

from gspo_cli.config import Recipe, merge
from gspo_cli.errors import GspoError
from gspo_cli.plugins import look_beside

FOLDERS = [Path(__file__).parent / "recipes", Path(__file__).parent.parent / "recipes"]
"""The recipes shipped in the wheel; in a source tree they lie beside the package."""

CODE_KEYS = ("trust_remote_code", "code_revision")


@dataclass(frozen=True)
class Layer:
    """One source of keys, kept apart so that an error can name it."""

    source: str
    table: dict[str, Any]


def names() -> list[str]:
    """The shipped recipes, by the name that finds them (`claims/x` for one in a folder)."""
    return sorted({p.relative_to(f).with_suffix("").as_posix() for f in FOLDERS for p in f.rglob("*.toml")})


def find(name: str) -> Path:
    """The file of a recipe given by path or by name.

    Errors: GspoError with the nearest name.
    """
    candidates = [Path(name)] if name.endswith(".toml") else [f / f"{name}.toml" for f in FOLDERS]
    for path in candidates:
        if _is_file(path):
            return path
    near = difflib.get_close_matches(name, names(), n=1)
    raise GspoError(
        f"no recipe {name!r}",
        "it is neither a .toml file nor a shipped recipe",
        f"did you mean {near[0]!r}? `gspo recipes ls` lists all"
        if near
        else "`gspo recipes ls` lists the shipped ones",
    )


def read_layers(path: Path, seen: tuple[Path, ...] = ()) -> list[Layer]:
    """A recipe file and what it extends, the base first."""
    path = path.resolve()
    if path in seen:
        chain = " -> ".join(p.name for p in (*seen, path))
        raise GspoError(f"recipe {path.name} extends itself", f"the chain is {chain}", "remove one `extends`")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, an endless integer, endless brackets
        raise GspoError(f"{path} is not valid TOML", str(error), "mend the line named") from error
    parent = table.pop("extends", None)
    if parent is None:
        return [Layer(str(path), _plain(table))]
    beside = path.parent / f"{parent}.toml"
    return [
        *read_layers(beside if _is_file(beside) else find(str(parent)), (*seen, path)),
        Layer(str(path), _plain(table)),
    ]


def parse_set(assignment: str) -> Layer:
    """One `--set a.b=c`. The value is read as TOML, and as text where it is not (dates are text too)."""
    key, equals, text = assignment.partition("=")
    keys = [k.strip() for k in key.split(".")]
    if not equals or not all(keys):
        raise GspoError(f"--set {assignment} has no key and value", "the form is KEY=VALUE", "e.g. --set train.lr=2e-4")
    try:
        value = _plain(tomllib.loads(f"value = {text}"))["value"]
    except (ValueError, RecursionError):
        value = text
    for part in reversed(keys):
        value = {part: value}
    return Layer(f"--set {assignment}", value)


def load(name: str, options: dict[str, Any] | None = None, sets: Iterable[str] = ()) -> Recipe:
    """The checked recipe `name`, with named options and `--set` assignments laid on top.

    Errors: GspoError for the first thing that is wrong.
    """
    return check([*read_layers(find(name)), Layer("the command line", options or {}), *map(parse_set, sets)])


def check(layers: list[Layer]) -> Recipe:
    """The recipe that the layers make, each laid on those before it; modules beside its files are found from now on.

    Errors: RecipeErrors with everything that is wrong.
    """
    table: dict[str, Any] = {}
    for layer in layers:
        _refuse_infinite(layer.table, layer.source, "")
        table = merge(without_other_model(table, layer.table), layer.table)
        if layer.source.endswith(".toml") and not is_shipped(Path(layer.source)):
            look_beside(Path(layer.source).parent)
    try:
        loaded = Recipe.model_validate(table)
    except ValidationError as error:
        raise RecipeErrors(user_errors(error, layers, Recipe)) from error
    loaded._sources = tuple(layers)
    return loaded


class RecipeErrors(GspoError):
    """What is wrong with a recipe; as an error, the first of it."""

    def __init__(self, all_of_them: list[GspoError]) -> None:
        first = all_of_them[0]
        super().__init__(first.message, first.why, first.hint, first.code)
        self.all_of_them = all_of_them


def is_shipped(path: Path) -> bool:
    """Whether a file is one of the shipped recipes."""
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in FOLDERS)


def without_other_model(table: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`table` without the model that `over` replaces: the later source says whether one is built or loaded."""
    old, new = table.get("model"), over.get("model")
    if not isinstance(old, dict) or not isinstance(new, dict) or ("path" in new) == ("tiny" in new):
        return table
    replaced = ("tiny",) if "path" in new else ("path", "revision")
    return table | {"model": {k: v for k, v in old.items() if k not in replaced}}


def user_errors(
    error: ValidationError,
    layers: list[Layer],
    model: type[Any],
    prefix: tuple[str, ...] = (),
    also: Iterable[str] = (),
    skip: int = 0,
) -> list[GspoError]:
    """The complaints of a validation as errors that name the source, the key and the nearest right key.

    `prefix` stands in the recipe before the validated table (in place of the first `skip` parts of its own path);
    `also` are further keys that the table may hold.
    """
    found = error.errors(include_url=False)
    return [_user_error(complaint, layers, model, prefix, also, skip) for complaint in found]


def _user_error(
    first: Any, layers: list[Layer], model: type[Any], prefix: tuple[str, ...], also: Iterable[str], skip: int
) -> GspoError:
    loc = (*prefix, *(str(part) for part in first["loc"][skip:] if part != "[key]"))
    key = ".".join(loc) or "the recipe"
    files = [layer.source for layer in layers if layer.source.endswith(".toml")] or [layers[0].source]
    source = next((layer.source for layer in reversed(layers) if loc and _holds(layer.table, loc)), files[-1])
    if first["type"] != "extra_forbidden":
        value = f" (given: {first['input']!r})" if first["type"] != "missing" and loc else ""
        return GspoError(f"{source}: {key}: {first['msg'].removeprefix('Value error, ')}{value}",
                         "the recipe is checked before anything is loaded or written", f"mend {key}")  # fmt: skip
    known = _keys(model, tuple(map(str, first["loc"][:-1])))
    if len(first["loc"]) == 1:
        known += also
    if loc[-1] in CODE_KEYS:
        return GspoError(
            f"{source}: {key!r} is no key of a recipe",
            "a recipe is passed on and read less closely than a command, so it cannot have a model's code run",
            "name the commit that you have read in the command: --trust-remote-code REVISION",
        )
    near = difflib.get_close_matches(loc[-1], known, n=1)
    table = f"[{'.'.join(loc[:-1])}]" if loc[:-1] else "the top level"
    return GspoError(
        f"{source}: unknown key {key!r}",
        f"{table} knows {', '.join(known)}",
        f"did you mean {near[0]!r}?" if near else "remove it, or see `gspo recipes show quickstart`",
    )


def _holds(table: Any, loc: tuple[str, ...]) -> bool:
    for part in loc:
        if not isinstance(table, dict) or part not in table:
            return False
        table = table[part]
    return True


def _keys(model: Any, loc: tuple[str, ...]) -> list[str]:
    """The keys that the table at `loc` may hold."""
    for part in loc:
        model = _table(_fields(model)[part])
    return list(_fields(model))


def known_keys(model: Any = Recipe, prefix: str = "") -> Iterator[str]:
    """`train.steps` and all other keys of a recipe; those that users name themselves end with their table."""
    for name, annotation in _fields(model).items():
        inner = None if get_origin(annotation) is dict else _table(annotation)
        if inner is None:
            yield prefix + name
        else:
            yield from known_keys(inner, f"{prefix}{name}.")


def _table(annotation: Any) -> Any:
    """The class with fields in an annotation, if there is one."""
    options = [annotation, *getattr(annotation, "__args__", ())]
    return next((o for o in options if isinstance(o, type) and _fields(o)), None)


def _fields(model: Any) -> dict[str, Any]:
    if isinstance(model, type) and issubclass(model, BaseModel):
        return {name: f.annotation for name, f in model.model_fields.items()}
    return get_type_hints(model) if is_dataclass(model) else {}


def _refuse_infinite(value: Any, source: str, key: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise GspoError(f"{source}: {key} = {value}", "every number of a recipe is finite", f"give {key} a number")
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, item in inner:
        _refuse_infinite(item, source, f"{key}.{part}".lstrip("."))


def _plain(value: Any) -> Any:
    """TOML values with dates and times as text in ISO form."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value.isoformat() if isinstance(value, date | time) else value


def _is_file(path: Path) -> bool:
    """Whether a file is there; a name that no file system takes is none."""
    try:
        return path.is_file()
    except OSError:
        return False
