"""Writing recipes: copy a shipped one, start a new one, check one without loading anything, and their JSON schema."""

import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

from pydantic import TypeAdapter

from gspo_cli.config import ENGINES, Recipe, TaskConfig
from gspo_cli.errors import GspoError
from gspo_cli.plugins import is_plugin
from gspo_cli.recipe import RecipeErrors, find, is_shipped, names, read_layers, validate
from gspo_cli.runlog.folder import NAME
from gspo_cli.runlog.fs import write_text

TEMPLATES = Path(__file__).parent / "new_recipe"
EXTENDS = re.compile(r"^extends\s*=\s*([\"'])(?P<parent>[^\"']+)\1", re.MULTILINE)


def recipe_files(recipes: list[str]) -> list[Path]:
    """The files of recipes given by path or name, and every .toml file in given folders.

    Errors: GspoError for a folder without recipes, or for an unknown name, suggesting the closest one.
    """
    found: list[Path] = []
    for name in recipes:
        if not Path(name).is_dir():
            found.append(find(name))
        elif files := [path for path in sorted(Path(name).rglob("*.toml")) if path.is_file()]:
            found += files
        else:
            raise GspoError(f"no recipe in {name}", "it has no .toml file", "give a file or a folder of recipes")
    return found


def find_errors(path: Path) -> list[GspoError]:
    """Every error in a recipe; if its tables are invalid, only those errors."""
    try:
        recipe = validate(read_layers(path))
    except RecipeErrors as invalid:
        return invalid.errors
    except GspoError as error:
        return [error]
    errors = []
    for place, check in _checks(recipe):
        try:
            check()
        except GspoError as error:
            named = ".toml: " in error.message  # it names its own place
            message = error.message if named else f"{path}: {place}: {error.message}"
            errors.append(GspoError(message, error.why, error.hint))
    return errors


def _checks(recipe: Recipe) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Independent checks, each with the key or table that it is about."""
    from gspo_cli.evals.benchmark import DataChoice  # torch and all else only once the tables are valid
    from gspo_cli.evals.benchmarks import BENCHMARKS
    from gspo_cli.evals.settings import check_benchmarks
    from gspo_cli.report.runs.metric_spec import parse_metric
    from gspo_cli.rollout.collect import PromptStream
    from gspo_cli.tasks import make_task, read_problems
    from gspo_cli.tasks.data import is_local
    from gspo_cli.tasks.trial import try_rewards
    from gspo_cli.training.study.arms import resolve_arm

    def read_task() -> None:
        """Its own data or a data file, but no download."""
        task, config = make_task(recipe.task), recipe.task
        if is_plugin(config.name) or (config.path and is_local(config.path)):
            problems = read_problems(task, config)
            PromptStream(problems, recipe.rollout.prompts, seed=0)
            try_rewards(task, problems, config)

    for arm in recipe.arms or [recipe.algo.name]:
        yield f"arms.{arm}" if recipe.arms else "algo", partial(resolve_arm, recipe, arm, here=False)
    yield "task", read_task
    yield "eval", partial(check_benchmarks, recipe)
    yield "report.metric", partial(parse_metric, recipe.report.metric)
    if recipe.cold_start and recipe.cold_start.path:
        from gspo_cli.training.cold_start import demonstration_rows  # loads torch

        yield "cold_start.path", partial(demonstration_rows, recipe.cold_start, recipe.cold_start.path)
    for name, file in recipe.eval.data.items():
        embedded = name == "arithmetic"  # its data are lengths of rows
        check = partial(BENCHMARKS[name].load, DataChoice((Path(file),))) if embedded else partial(_check_file, file)
        yield f"eval.data.{name}", check


def _check_file(file: str) -> None:
    if not Path(file).is_file():
        raise GspoError(f"no file {file}", "paths are relative to the recipe or the working directory", "fix the path")


def copy_recipe(name: str, target: Path | None) -> Path:
    """Copy a shipped recipe to a file, or into a folder under its own name, and return the file.

    Its `extends` is rewritten so that it resolves from anywhere.
    Errors: GspoError if the file exists, or if a file beside it would be extended instead of the shipped recipe.
    """
    source = find(name)
    if not is_shipped(source):
        raise GspoError(f"{source} is your own file", "`copy` copies shipped recipes", f"cp {source} NEW.toml")
    target = target or Path()
    if target.is_dir():
        target = target / source.name
    if target.suffix != ".toml":
        raise GspoError(f"{target} is not a recipe file name", "a recipe's file name ends in .toml", f"{target}.toml")
    if target.exists():
        raise GspoError(f"{target} exists", "your files are never overwritten", "give another PATH, or remove it")
    text = source.read_text(encoding="utf-8")
    if found := EXTENDS.search(text):
        parent = found["parent"]
        sibling = source.parent / f"{parent}.toml"
        if sibling.is_file():
            parent = next(shipped for shipped in names() if find(shipped).samefile(sibling))
        shadowing = target.parent / f"{parent}.toml"
        if shadowing.exists() or shadowing.resolve() == target.resolve():
            raise GspoError(
                f"{target} would extend {shadowing}",
                f"{name} extends the shipped recipe {parent!r}, but a file beside a recipe takes precedence",
                "give another PATH",
            )
        text = text[: found.start("parent")] + parent + text[found.end("parent") :]
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, text)
    return target


def new_recipe(folder: Path) -> tuple[Path, Path]:
    """Write a `recipe.toml` and a Python module named after the folder, and return both.

    Errors: GspoError if the folder exists, or its name cannot be the name of a study and a module.
    """
    module = _checked_module(folder)
    recipe, code = folder / "recipe.toml", folder / f"{module}.py"
    for path, template in ((code, "module.py.in"), (recipe, "recipe.toml.in")):
        _write(path, template, {"name": folder.name, "module": module})
    return recipe, code


@dataclass(frozen=True)
class DataRecipe:
    """A recipe that was written for one's own data."""

    files: list[str]
    columns: list[str]
    rows: int
    shown: list[dict[str, str]]
    """The first three rows, each value cut to what a line holds."""
    guessed: dict[str, str | None]
    held_out: int
    """Rows that are not trained on."""


def new_data_recipe(folder: Path, data: str) -> DataRecipe:
    """Write a `recipe.toml` for the rows of `data`, with what a look at the first of them suggests, and if no built-in
    reward fits, a module with an empty one.

    Errors: GspoError as `new_recipe`, for data that cannot be read, or if nothing in them can be a prompt.
    """
    from gspo_cli.tasks import make_task
    from gspo_cli.tasks.data import is_local, read_source
    from gspo_cli.tasks.guess import ASK, guess_columns

    module = _checked_module(folder)
    source, located = read_source(data, ("", None, None), "train")
    rows = [row for _, row in located]
    found = guess_columns(source, rows[:LOOKED_AT])
    path = os.path.relpath(data, folder) if is_local(data) else data
    roles = {"prompt": found.prompt} | ({"answer": found.answer} if found.answer else {})
    keys = {"name": "data", "path": data, "columns": roles, "reward": "json"}
    share = 0.1 if len(rows) >= 100 else 0.2
    try:
        num_held = len(make_task(TaskConfig.model_validate(keys | {"held_out": share})).problems("held_out"))
    except GspoError:  # none, of so few rows
        num_held = 0
    reward = found.reward or f"{module}:reward"
    ask = ASK.get(reward)
    template = f"template = {quoted('{question}' + chr(10) + ask)} # asks for what the reward reads" if ask else ""
    columns = list(dict.fromkeys(name for row in rows[:LOOKED_AT] for name in row))
    values = {
        "name": folder.name, "folder": folder.as_posix(), "source": Path(source).name, "rows": len(rows),
        "columns": ", ".join(columns), "path": quoted(path),
        "roles": ", ".join(f"{role} = {quoted(name)}" for role, name in roles.items()),
        "template": f"# {template} (here: at the end of your messages)" if found.chat and template else
                    template or '# template = "{question}" # text with any {COLUMN} in it',
        "held_out": f"held_out = {share} # {num_held} of the rows are not trained on but evaluated" if num_held else
                    "# held_out = 0.2 # rows that are not trained on but evaluated; or a file",
        "reward": f"reward = {quoted(reward)}", "first": reward, "prompts": min(8, len(rows) - num_held),
        "tokens": 64 if reward in ("exact", "choice") else 256, "bench": '["held_out"]' if num_held else "[]",
    }  # fmt: skip
    files = [folder / "recipe.toml"]
    _write(files[0], "data.toml.in", values)
    if found.reward is None:
        files.append(folder / f"{module}.py")
        _write(files[1], "reward.py.in", values)
    shown = [{name: quoted(value)[:60] for name, value in row.items()} for row in rows[:3]]
    guessed = {"prompt": found.prompt, "answer": found.answer, "reward": reward}
    return DataRecipe([str(path) for path in files], columns, len(rows), shown, guessed, num_held)


LOOKED_AT = 1000
"""Rows whose columns are looked at."""


def quoted(value: Any) -> str:
    """A text for TOML, which takes JSON's strings; anything else as JSON."""
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")


def _checked_module(folder: Path) -> str:
    """The name of the module of a new recipe's folder. Errors: see `new_recipe`."""
    name, module = folder.name, re.sub(r"\W", "_", folder.name)
    if not NAME.fullmatch(name) or not module.isidentifier():
        raise GspoError(
            f"{name!r} is not a valid name for a recipe and its module",
            "a name starts with a letter and continues with letters, digits, '.', '_' and '-'",
            "e.g. gspo recipes new my-task",
        )
    if folder.exists():
        raise GspoError(f"{folder} exists", "your files are never overwritten", "choose another name")
    if importlib.util.find_spec(module) is not None:
        raise GspoError(
            f"{name!r} would create a module {module!r}",
            "a module of that name is already installed",
            f"choose another name, such as my-{name}",
        )
    return module


def _write(path: Path, template: str, values: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, Template((TEMPLATES / template).read_text(encoding="utf-8")).substitute(values))


Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def recipe_schema() -> Schema:
    """A schema that every valid recipe matches. `gspo recipes validate` checks how keys work together."""
    from gspo_cli.algorithms import ALGORITHMS
    from gspo_cli.evals.benchmarks import BENCHMARKS
    from gspo_cli.tasks import TASKS

    schema = Recipe.model_json_schema()
    tables: dict[str, Schema] = schema["$defs"] | {"Recipe": schema}
    for table in tables.values():
        table.pop("required", None)  # a missing key may come from the recipe that this one extends
    _name_or_plugin(tables["AlgoConfig"], "name", list(ALGORITHMS))
    _name_or_plugin(tables["TaskConfig"], "name", list(TASKS))
    _name_or_plugin(tables["RolloutConfig"], "engine", list(ENGINES))
    tables["EvalConfig"]["properties"]["bench"]["items"] = {"enum": list(BENCHMARKS)}
    parameters = {name: algorithm.Params for name, algorithm in ALGORITHMS.items()}
    _add_parameters(tables["AlgoConfig"], schema["$defs"], parameters)
    arms = schema["properties"]["arms"]["patternProperties"]
    arms |= {pattern: {"$ref": "#/$defs/AlgoConfig"} for pattern in arms}
    extends = {"type": "string", "description": "The recipe to start from: one beside this file, or a shipped one."}
    schema["properties"] = {"extends": extends} | schema["properties"]
    return {"$schema": DIALECT} | schema | {"title": "gspo recipe"}


def _name_or_plugin(table: Schema, key: str, names: list[str]) -> None:
    entry = table["properties"][key]
    entry.pop("type")
    entry["anyOf"] = [{"enum": names}, {"type": "string", "pattern": ":"}]


def _add_parameters(table: Schema, definitions: dict[str, Schema], parameters: dict[str, type[Any]]) -> None:
    """Add the algorithms' own keys to `[algo]`, each with the algorithms that have it and their defaults."""
    forms: dict[str, list[Schema]] = {}
    defaults: dict[str, list[str]] = {}
    for name, params in parameters.items():
        own = TypeAdapter(params).json_schema(ref_template="#/$defs/{model}")
        definitions |= own.get("$defs", {})
        for key, entry in own["properties"].items():
            defaults.setdefault(key, []).append(f"{name} {entry.pop('default', None)}")
            entry.pop("title", None)
            known = forms.setdefault(key, [])
            known += [] if entry in known else [entry]
    for key, known in forms.items():
        parameter = {"anyOf": known, "description": f"Defaults: {'; '.join(defaults[key])}"}
        table["properties"].setdefault(key, parameter)
