"""All that can be said of a recipe without loading a model or fetching data.

A recipe that names a module of one's own has it imported, as training would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from gspo_cli.config import Recipe
from gspo_cli.errors import GspoError
from gspo_cli.evals.during_training import check_benchmarks
from gspo_cli.plugins import is_plugin
from gspo_cli.recipe import RecipeErrors, check, find, read_layers
from gspo_cli.report.judged_by import parse_number
from gspo_cli.rollout.collect import PromptStream
from gspo_cli.tasks import make_task
from gspo_cli.training.study import resolve_arm


def files_of(names: list[str]) -> list[Path]:
    """The files of recipes given by path or by name, and every .toml in folders.

    Errors: GspoError for a folder without any, or for what is neither, with the nearest name.
    """
    found: list[Path] = []
    for name in names:
        files = sorted(Path(name).rglob("*.toml")) if Path(name).is_dir() else [find(name)]
        if not files:
            raise GspoError(f"no recipe in {name}", "there is no .toml file", "give a file or a folder of recipes")
        found += files
    return found


def faults(path: Path) -> list[GspoError]:
    """Everything that is wrong with a recipe's file; of its text, the first thing."""
    try:
        recipe = check(read_layers(path))
    except RecipeErrors as errors:
        return errors.all_of_them
    except GspoError as only:
        return [only]
    return [error for table, look in _looks(recipe) if (error := _error_of(look, f"{path}: {table}"))]


def _looks(recipe: Recipe) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What to try, each on its own, with the key or table that it is about."""
    for arm in recipe.arms:
        yield f"arms.{arm}", partial(resolve_arm, recipe, arm, here=False)
    if not recipe.arms:
        yield "algo", partial(resolve_arm, recipe, recipe.algo.name, here=False)
    yield "task", partial(_check_task, recipe)
    yield "eval", partial(check_benchmarks, recipe.eval)
    yield "report.metric", partial(parse_number, recipe.report.metric)
    if recipe.cold_start and recipe.cold_start.path:
        yield "cold_start.path", partial(_check_file, recipe.cold_start.path)
    for name, file in recipe.eval.data.items():
        yield f"eval.data.{name}", partial(_check_file, file)


def _check_task(recipe: Recipe) -> None:
    """Its own data, or a file's, are read; those of a hub are not."""
    task, config = make_task(recipe.task), recipe.task
    if config.path or is_plugin(config.name):
        PromptStream(task.problems(config.split), recipe.rollout.prompts, seed=0)


def _check_file(file: str) -> None:
    if not Path(file).is_file():
        raise GspoError(f"no file {file}", "paths count from the working directory", "mend the path")


def _error_of(look: Callable[[], Any], place: str) -> GspoError | None:
    """What a check says against a recipe; with the place, unless it names its own."""
    try:
        look()
    except GspoError as error:
        named = ".toml: " in error.message
        return GspoError(error.message if named else f"{place}: {error.message}", error.why, error.hint)
    return None
