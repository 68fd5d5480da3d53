"""Read what a study is made of before anything is announced or written: data, model files, tokenizer, prompts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo_cli.config import Recipe
from gspo_cli.errors import GspoError
from gspo_cli.evals.settings import check_benchmarks, load_benchmarks
from gspo_cli.models import tiny
from gspo_cli.models.files import looks_local
from gspo_cli.plugins import is_plugin
from gspo_cli.rollout.collect import PromptStream
from gspo_cli.rollout.plain_tokenizer import PlainTokenizer, read_model
from gspo_cli.rollout.prompts import encode, fitting, prompt_notes
from gspo_cli.tasks import Noting, make_task, read_problems
from gspo_cli.tasks.trial import try_rewards
from gspo_cli.types import Problem, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class Inputs:
    """What was read."""

    problems: list[Problem] = field(default_factory=list)
    """Empty if they are on the hub, and it cannot be reached."""
    tokenizer: PlainTokenizer | PreTrainedTokenizerBase | None = None
    config: dict[str, Any] | None = None
    """The configuration of a model by its path."""
    first: Prompt | None = None
    """The first problem's prompt as the model gets it."""
    notes: list[str] = field(default_factory=list)


def read_inputs(recipe: Recipe, planning: bool = False) -> Inputs:
    """Data, model files and tokenizer as the run reads them, but no weights; every prompt is checked for its length.

    `planning`: a model or data set on a hub that cannot be reached is a note, since a plan needs neither.
    Errors: GspoError for whatever would stop the run when it loads them.
    """
    for name, path, revision in (
        ("model", recipe.model.path, recipe.model.revision), ("task", recipe.task.path, recipe.task.revision),
    ):  # fmt: skip
        if revision is not None and path is not None and Path(path).exists():
            raise GspoError(
                f"{name}.revision = {revision!r} with the local {path}",
                "only what is on the hub has revisions",
                f"leave it out, or give the hub name as {name}.path",
            )
    inputs, task, source, limit = Inputs(), make_task(recipe.task), recipe.model.path, None
    local = is_plugin(recipe.task.name) or recipe.task.path is not None or recipe.task.environment is not None
    with _noted(inputs, planning and not local):
        inputs.problems = read_problems(task, recipe.task)
        PromptStream(inputs.problems, recipe.rollout.prompts, seed=0)  # refuses too few problems
        inputs.notes += try_rewards(task, inputs.problems, recipe.task)
    inputs.notes += task.notes if isinstance(task, Noting) else []
    check_benchmarks(recipe)
    with _noted(inputs, planning and not recipe.eval.data):
        load_benchmarks(recipe)

    if recipe.cold_start is not None and recipe.cold_start.path is not None:
        from gspo_cli.training.cold_start import demonstration_rows  # loads torch

        demonstration_rows(recipe.cold_start, recipe.cold_start.path)
    with _noted(inputs, planning and source is not None and not Path(source).is_dir() and not looks_local(source)):
        if source is None:
            assert recipe.model.tiny is not None
            inputs.tokenizer = tiny_of_plan(recipe.model.tiny.tokenizer)
        else:
            model = read_model(source, recipe.model.revision)
            inputs.tokenizer, inputs.config, limit = model.tokenizer, model.config, model.limit
    if inputs.problems and inputs.tokenizer is not None:
        fit = fitting(inputs.problems, inputs.tokenizer, limit, recipe.rollout.max_new_tokens, recipe.task)
        PromptStream(fit, recipe.rollout.prompts, seed=0)
        inputs.first = encode(inputs.tokenizer, fit[0], recipe.task)
        inputs.notes += prompt_notes(inputs.tokenizer, inputs.first, recipe.task)
    return inputs


def tiny_of_plan(kind: str) -> PlainTokenizer:
    """The tokenizer of a tiny model."""
    backend = tiny.TOKENIZERS[kind]()
    backend.add_special_tokens([*tiny.SPECIAL.values()])
    return PlainTokenizer(backend, tiny.SPECIAL)


@contextmanager
def _noted(inputs: Inputs, tolerated: bool) -> Iterator[None]:
    """Turn a fault into a note where it is tolerated."""
    try:
        yield
    except GspoError as error:
        if not tolerated:
            raise
        inputs.notes.append(f"not checked: {error.message} ({error.why})")
