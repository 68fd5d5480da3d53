"""Recipes: find by name or path, merge along `extends`, apply `--set`, and validate before anything else happens.

Precedence: class defaults < `extends` chain < the recipe < named options < `--set`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import os
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails

from gspo_cli.config import AlgoConfig, Recipe, flat, merge, nest
from gspo_cli.errors import GspoError, nearest, quoted
from gspo_cli.plugins import add_search_folder
from gspo_cli.tables import refuse_text

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

FOLDERS = [Path(__file__).parent / "recipes", Path(__file__).parent.parent / "recipes"]
"""The shipped recipes: inside the wheel, or beside the package in a source tree."""

MAX_EXTENDS, MAX_ERRORS, MOST_BYTES = 50, 100, 1 << 24
LONG_KEY = re.compile(r"(?:[A-Za-z0-9_-]+[\"']?\s*\.\s*[\"']?){100}")
"""More parts than any key has; nested tables of that depth would end the stack of whoever reads them."""
PATHS = (("task", "path"), ("task", "held_out"), ("model", "path"), ("cold_start", "path"), ("eval", "data"))
"""Keys whose values may be paths."""
CODE_KEYS = ("trust_remote_code", "code_revision")


@dataclass(frozen=True)
class Layer:
    """The keys from one source, kept separate so that an error can name it."""

    source: str
    table: dict[str, Any]


def names() -> list[str]:
    """The names of the shipped recipes (`claims/x` for one in a folder)."""
    return sorted({p.relative_to(f).with_suffix("").as_posix() for f in FOLDERS for p in f.rglob("*.toml")})


def find(name: str) -> Path:
    """The file of a recipe, given its path or its name. Errors: GspoError suggesting the closest name."""
    candidates = [Path(name)] if name.endswith(".toml") else [f / f"{name}.toml" for f in FOLDERS]
    for path in candidates:
        if os.path.isfile(path):  # unlike Path.is_file, this takes any name
            return path
    why = "there is no such file" if name.endswith(".toml") else "it is neither a .toml file nor a shipped recipe"
    hint = f"{nearest(name, names(), '')} `gspo recipes ls` lists the shipped recipes".lstrip()
    if os.path.isdir(name):
        why, inner = "it is a folder", os.path.join(name, "recipe.toml")
        hint = f"give its recipe: {inner}" if os.path.isfile(inner) else hint
    elif os.path.isfile(name):
        why, hint = (
            "a recipe is a .toml file",
            f"if it holds data, write their recipe: gspo recipes new NAME --data {quoted(name)}",
        )
    raise GspoError(f"no recipe {name!r}", why, hint)


def read_layers(path: Path, seen: tuple[Path, ...] = ()) -> list[Layer]:
    """A recipe file and the recipes it extends, base first."""
    path = path.resolve()
    if path in seen:
        chain = " -> ".join(p.name for p in (*seen, path))
        raise GspoError(f"recipe {path.name} extends itself", f"the chain is {chain}", "remove one of its `extends`")
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise ValueError(f"it has {size} bytes, and a recipe at most {MOST_BYTES}")
        text = path.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
        if long := LONG_KEY.search(text):
            raise ValueError(f"{long[0][:40]!r} begins a key of a hundred parts")
        table = _read_toml(text)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise GspoError(f"{path} is not in UTF-8", f"line {line}: {error}", "save it as UTF-8, as TOML asks") from error
    except (ValueError, RecursionError) as error:  # bad TOML, an endless integer, endless brackets
        raise GspoError(f"{path} is not valid TOML", str(error), "fix that line") from error
    parent = table.pop("extends", None)
    if len(seen) >= MAX_EXTENDS:
        raise GspoError(f"recipe {seen[0].name} extends too many others", f"{MAX_EXTENDS} is the most", "merge some")
    layer = Layer(str(path), table)
    if parent is None:
        return [layer]
    sibling = path.parent / f"{parent}.toml"
    return [*read_layers(sibling if os.path.isfile(sibling) else find(str(parent)), (*seen, path)), layer]


def parse_set(assignment: str) -> Layer:
    """One `--set a.b=c`. The value is parsed as TOML; anything else, and a date, is text."""
    key, equals, text = assignment.partition("=")
    try:
        if not equals or key.count(".") > 100:
            raise ValueError
        table = keys = tomllib.loads(f"{key} = true")  # a label with a dot stands in quotes
    except ValueError as error:
        raise GspoError(
            f"--set {assignment} lacks a key or value", "the form is KEY=VALUE", "e.g. --set train.lr=2e-4"
        ) from error
    try:
        ((_, value),) = _read_toml(f"value = {text}").items()
    except (ValueError, RecursionError):
        value = text
    while (last := next(iter(keys))) and isinstance(keys[last], dict):
        keys = keys[last]
    keys[last] = value
    return Layer(f"--set {assignment}", table)


def load(name: str, options: dict[str, Any] | None = None, sets: Iterable[str] = ()) -> Recipe:
    """The valid recipe `name` with named options and `--set` keys on top. Errors: GspoError for the first problem."""
    layers = list(map(parse_set, sets))
    tiny = next((layer for layer in layers if contains(layer.table, ("model", "tiny"))), None)
    if tiny and (options or {}).get("model", {}).get("path"):
        raise GspoError(f"--model and {tiny.source}", "both decide the model", "leave one of them out")
    return validate([*read_layers(find(name)), Layer("the command line", options or {}), *layers])


def validate(layers: list[Layer]) -> Recipe:
    """Merge layers into a valid recipe, later ones winning. Plugins are searched for beside its files from now on.

    Errors: RecipeErrors with every problem found.
    """
    table, given = dict[str, Any](), dict[str, Any]()
    for layer in layers:
        _refuse_nonfinite(layer.table, layer.source, "")
        if layer.source.startswith("--set ") and (cleared := _cleared(table, layer.table)):
            raise GspoError(
                f"{layer.source} changes nothing",
                f"tables are merged, and [{cleared}] keeps its keys",
                "set the keys to change; --algo chooses the arms",
            )
        if layer.source.endswith(".toml") and is_file(layer) and not is_shipped(Path(layer.source)):
            add_search_folder(Path(layer.source).parent)
            layer = Layer(layer.source, beside(layer.table, Path(layer.source).parent))
        table = _drop_replaced_model(table, layer.table)
        table = _drop_replaced_algorithm(table, layer.table)
        if not is_file(layer):
            given = merge(given, layer.table)
        table = merge(table, layer.table)
    try:
        loaded = Recipe.model_validate(table)
    except ValidationError as error:
        problems = error.errors(include_url=False)[:MAX_ERRORS]
        raise RecipeErrors([user_error(problem, layers, Recipe) for problem in problems]) from error
    loaded._sources, loaded._command_line = tuple(layers), given
    return loaded


def default_arms(recipe: Recipe) -> list[str]:
    """The arms that train without `--algo`: those of `[arms]`, else the algorithm of `[algo]`.

    The command line adds one only together with its name: `--set arms.x.lr=1` may be a slip for another label.
    """
    added = recipe._command_line.get("arms", {})
    files = [layer.table for layer in recipe._sources if is_file(layer)]
    labels = [
        arm
        for arm, table in recipe.arms.items()
        if arm not in added or "name" in table or any(contains(file, ("arms", arm)) for file in files)
    ]
    return labels or [recipe.algo.name]


def no_algorithm(name: str, algorithms: Iterable[str], arms: Iterable[str]) -> GspoError:
    """The error for a name that is neither an algorithm nor an arm, with the nearest."""
    return GspoError(
        f"no algorithm or arm {name!r}",
        f"the algorithms are {', '.join(algorithms)}, or module: for your own file module.py"
        + (f"; the recipe's arms are {', '.join(arms)}" if arms else ""),
        nearest(name, [*algorithms, *arms], "choose one of them with --algo"),
    )


def refuse_twice(recipe: Recipe, keys: Iterable[str], option: str) -> None:
    """Errors: GspoError where the command line set one of these dotted keys, which `option` decides as well."""
    for key, given in itertools.product(keys, flat(recipe._command_line)):
        if f"{given}.".startswith(f"{key}.") or f"{key}.".startswith(f"{given}."):
            raise GspoError(f"{option} and --set {given}", f"both decide {key}", "leave one of them out")


def is_file(layer: Layer) -> bool:
    """Whether a layer is a recipe's file or a run's, and not from the command line."""
    return not layer.source.startswith("--set ") and layer.source.endswith((".toml", ".json"))


class RecipeErrors(GspoError):
    """All problems of a recipe; raised, it reads as the first of them."""

    def __init__(self, errors: list[GspoError]) -> None:
        first = errors[0]
        super().__init__(first.message, first.why, first.hint, first.code)
        self.errors = errors


def use_model(path: str | None) -> dict[str, Any]:
    """The named option `--model`: it replaces the recipe's model, and its cold start with it."""
    return {} if path is None else {"model": {"path": path, "tiny": None}, "cold_start": None}


def is_shipped(path: Path) -> bool:
    """Whether a file is a shipped recipe."""
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in FOLDERS)


def beside(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A recipe's table with the paths that name something in its folder; others are relative to the working folder."""

    def resolved(value: Any) -> Any:
        there = os.path.normpath(folder / value) if isinstance(value, str) and value else ""
        return there if os.path.exists(there) and os.path.realpath(there) != os.path.realpath(value) else value

    for *parents, last in PATHS:
        inner: Any = table
        for key in parents:
            inner = inner.get(key) if isinstance(inner, dict) else None
        old = inner.get(last) if isinstance(inner, dict) else None
        new = {name: resolved(value) for name, value in old.items()} if isinstance(old, dict) else resolved(old)
        if new != old:
            table = merge(table, nest(".".join((*parents, last)), new))
    return table


def _drop_replaced_model(table: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`table` without the model that `over` replaces: the later source decides between `path` and `tiny`."""
    old, new = table.get("model"), over.get("model")
    if not isinstance(old, dict) or not isinstance(new, dict) or ("path" in new) == ("tiny" in new):
        return table
    replaced = ("tiny",) if "path" in new else ("path", "revision")
    return table | {"model": {k: v for k, v in old.items() if k not in replaced}}


def _drop_replaced_algorithm(table: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`table` without the parameters of the algorithms that a `name` in `over` replaces, in `[algo]` or an arm."""

    def kept(old: Any, new: Any, former: Any) -> Any:
        if not isinstance(old, dict) or not isinstance(new, dict) or new.get("name") in (None, old.get("name", former)):
            return old
        return {key: value for key, value in old.items() if key in AlgoConfig.model_fields}

    if "algo" in table:
        table = table | {"algo": kept(table["algo"], over.get("algo"), AlgoConfig().name)}
    if isinstance(arms := table.get("arms"), dict) and isinstance(new := over.get("arms"), dict):
        table = table | {"arms": {label: kept(arm, new.get(label), label) for label, arm in arms.items()}}
    return table


def user_error(
    problem: ErrorDetails, layers: list[Layer], model: type[Any], prefix: tuple[str, ...] = (),
    also: Iterable[str] = (), skip: int = 0,
) -> GspoError:  # fmt: skip
    """A problem that a validation found, with its source, its key and the closest valid key.

    `prefix` is the path of the validated table in the recipe, replacing the first `skip` parts of the problem's own
    path; `also` are further keys that the table may hold.
    """
    path = (*prefix, *(str(part) for part in problem["loc"][skip:] if part != "[key]"))
    whole = problem["type"] == "value_error" and isinstance(problem["input"], dict)
    if problem["type"] not in ("missing", "extra_forbidden"):
        path = _without_choice(path, [layer.table for layer in layers])
    key = ".".join(path) or "the recipe"
    files = [layer.source for layer in layers if is_file(layer)] or [layers[0].source]
    source = next((layer.source for layer in reversed(layers) if path and contains(layer.table, path)), files[-1])
    if problem["type"] != "extra_forbidden":
        value = f" (given: {problem['input']!r:.200})" if problem["type"] != "missing" and not whole else ""
        return GspoError(
            f"{source}: {key}: {problem['msg'].removeprefix('Value error, ')}{value}",
            "the recipe is checked before anything is loaded or written",
            "correct the keys that it names" if whole else f"fix {key}",
        )
    if path[-1] in CODE_KEYS:
        return GspoError(
            f"{source}: a recipe cannot set {key!r}",
            "recipes are shared and read less closely than commands, so they may not run a model's code",
            "name the commit that you have reviewed on the command line: --trust-remote-code REVISION",
        )
    known = _keys(model, tuple(map(str, problem["loc"][:-1])))
    if len(problem["loc"]) == 1:
        known += also
    table = f"[{'.'.join(path[:-1])}]" if path[:-1] else "the top level"
    return GspoError(
        f"{source}: unknown key {key!r}",
        f"{table} has the keys {', '.join(known)}",
        nearest(path[-1], known, "remove it, or see `gspo recipes show quickstart`"),
    )


def _without_choice(path: tuple[str, ...], tables: list[dict[str, Any]]) -> tuple[str, ...]:
    """The path of a key, without the parts that name a choice among its types, such as `constrained-float`."""
    for end in range(1, len(path)):
        at = path[:end]
        given = any(contains(table, at) for table in tables)
        if given and not any(contains(table, path[: end + 1]) for table in tables):
            return at
    return path


def contains(table: Any, path: tuple[str, ...]) -> bool:
    for part in path:
        if isinstance(table, list):
            table = dict(zip(map(str, range(len(table))), table, strict=True))
        if not isinstance(table, dict) or part not in table:
            return False
        table = table[part]
    return True


def _keys(model: Any, path: tuple[str, ...]) -> list[str]:
    """The keys that the table at `path` may hold."""
    for part in path:
        if part in _fields(model):  # else the label or number of a table among several
            model = _table_class(_fields(model)[part])
    return list(_fields(model))


def check_params(params_class: Any, table: dict[str, Any]) -> Any:
    """An algorithm's parameters: the class defaults with `table` on top.

    Errors: pydantic.ValidationError on an unknown key or a wrong value.
    """
    defaults = params_class()
    unknown = list(unknown_keys(defaults, table, ()))
    if unknown:
        raise ValidationError.from_exception_data(
            params_class.__name__, [{"type": "extra_forbidden", "loc": loc, "input": None} for loc in unknown]
        )
    params = _adapter(params_class).validate_python(merge(dataclasses.asdict(defaults), table))
    for key, given in flat(table).items():
        try:
            refuse_text(given, functools.reduce(lambda inner, name: getattr(inner, name, None), key.split("."), params))
        except ValueError as error:
            problem = InitErrorDetails(type="value_error", loc=tuple(key.split(".")), input=given, ctx={"error": error})
            raise ValidationError.from_exception_data(params_class.__name__, [problem]) from None
    return params


@functools.cache
def _adapter(params_class: Any) -> TypeAdapter[Any]:
    """Kept, because building one takes longer than all the rest of an arm."""
    return TypeAdapter(params_class)


def unknown_keys(defaults: Any, table: dict[str, Any], loc: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths in `table` that the dataclass instance `defaults` has no field for."""
    for key, value in table.items():
        if key not in {f.name for f in dataclasses.fields(defaults)}:
            yield (*loc, key)
        elif isinstance(value, dict) and dataclasses.is_dataclass(getattr(defaults, key)):
            yield from unknown_keys(getattr(defaults, key), value, (*loc, key))


def known_keys(model: Any = Recipe, prefix: str = "") -> Iterator[str]:
    """Every key of a recipe, such as `train.steps`; a table whose keys are the user's counts as one key."""
    for name, annotation in _fields(model).items():
        inner = None if get_origin(annotation) is dict else _table_class(annotation)
        if inner is None:
            yield prefix + name
        else:
            yield from known_keys(inner, f"{prefix}{name}.")


def _table_class(annotation: Any) -> Any:
    """The class with fields in an annotation, if any."""
    options = [annotation, *getattr(annotation, "__args__", ())]
    return next((o for o in options if isinstance(o, type) and _fields(o)), None)


def _fields(model: Any) -> dict[str, Any]:
    if isinstance(model, type) and issubclass(model, BaseModel):
        return {name: f.annotation for name, f in model.model_fields.items()}
    return get_type_hints(model) if is_dataclass(model) else {}


def _refuse_nonfinite(value: Any, source: str, key: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise GspoError(f"{source}: {key} = {value}", "a recipe's numbers must be finite", f"give {key} a finite value")
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, item in inner:
        _refuse_nonfinite(item, source, f"{key}.{part}".lstrip("."))


def _cleared(table: dict[str, Any], over: dict[str, Any]) -> str | None:
    """The dotted name of a table with keys over which the one key of `over` sets an empty one."""
    ((key, value), *others) = over.items()
    old = table.get(key)
    if others or not isinstance(value, dict) or not isinstance(old, dict) or not old:
        return None
    below = _cleared(old, value) if value else None
    return f"{key}.{below}" if below else None if value else key


def _read_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text, with dates and times as ISO text."""
    table: dict[str, Any] = json.loads(json.dumps(tomllib.loads(text), default=lambda moment: moment.isoformat()))
    return table
