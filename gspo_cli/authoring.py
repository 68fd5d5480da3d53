"""Writing recipes: copy a shipped one, start a new one, check one without loading anything, and their JSON schema."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

from pydantic import TypeAdapter

from gspo_cli.config import ENGINES, Recipe
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
    from gspo_cli.evals.command import check_benchmarks
    from gspo_cli.report.runs.metric_spec import parse_metric
    from gspo_cli.rollout.collect import PromptStream
    from gspo_cli.tasks import make_task, read_problems
    from gspo_cli.tasks.data import is_local
    from gspo_cli.tasks.trial import try_rewards
    from gspo_cli.training.cold_start import demonstration_rows
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
    yield "eval", partial(check_benchmarks, recipe.eval)
    yield "report.metric", partial(parse_metric, recipe.report.metric)
    if recipe.cold_start and recipe.cold_start.path:
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
    folder.mkdir(parents=True)
    recipe, code = folder / "recipe.toml", folder / f"{module}.py"
    for path, template in ((code, "module.py.in"), (recipe, "recipe.toml.in")):
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        write_text(path, Template(text).substitute(name=name, module=module))
    return recipe, code


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
