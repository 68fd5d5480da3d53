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
from gspo_cli.recipe import RecipeErrors, check, read_layers
from gspo_cli.report.judged_by import parse_number
from gspo_cli.rollout.collect import PromptStream
from gspo_cli.tasks import make_task
from gspo_cli.training.study import resolve_arm


def files_of(paths: list[Path]) -> list[Path]:
    """The files named, and every .toml in the folders named.

    Errors: GspoError for a path without any.
    """
    found: list[Path] = []
    for path in paths:
        files = sorted(path.rglob("*.toml")) if path.is_dir() else [path]
        if not files or not files[0].is_file():
            raise GspoError(f"no recipe in {path}", "there is no .toml file", "give a file or a folder of recipes")
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
    return [error for look in _looks(recipe) if (error := _error_of(look))]


def _looks(recipe: Recipe) -> Iterator[Callable[[], Any]]:
    """What to try, each on its own."""
    for arm in [*recipe.arms] or [recipe.algo.name]:
        yield partial(resolve_arm, recipe, arm, here=False)
    yield partial(_check_task, recipe)
    yield partial(check_benchmarks, recipe.eval)
    yield partial(parse_number, recipe.report.metric)
    files = {"cold_start.path": recipe.cold_start and recipe.cold_start.path}
    files |= {f"eval.data.{name}": file for name, file in recipe.eval.data.items()}
    for key, file in files.items():
        if file:
            yield partial(_check_file, key, file)


def _check_task(recipe: Recipe) -> None:
    """Its own data, or a file's, are read; those of a hub are not."""
    task, config = make_task(recipe.task), recipe.task
    if config.path or is_plugin(config.name):
        PromptStream(task.problems(config.split), recipe.rollout.prompts, seed=0)


def _check_file(key: str, file: str) -> None:
    if not Path(file).is_file():
        raise GspoError(f"{key}: no file {file}", "paths count from the working directory", f"mend {key}")


def _error_of(look: Callable[[], Any]) -> GspoError | None:
    try:
        look()
    except GspoError as error:
        return error
    return None
