"""The rewards that a recipe names beside or in place of the task's own: functions, and the built-in ones."""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gspo_cli.config import TaskConfig, WeightedReward
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.plugins import explain, is_plugin, load_plugin, users_code
from gspo_cli.tasks.built_in_rewards import built_in
from gspo_cli.types import Problem, Score

Responses = list[tuple[Problem, str]]
ScoreAll = Callable[[Responses], list[Score]]
LARGEST = 1e9
"""Rewards are squared and summed in float32, where 1e19 is infinite; nothing meant as a reward is near either."""
CONCURRENT = 64
"""Calls of an async reward that wait at the same time."""


def own_code(config: TaskConfig) -> bool:
    """Whether scoring runs the user's code."""
    names = (config.name, config.reward or "", *(reward.name for reward in config.rewards))
    return config.environment is not None or any(map(is_plugin, names))


def as_score(given: Any, source: str) -> Score:
    """What a reward gave, as a Score. NaN has no value: the response is left out, not counted as wrong.

    Errors: GspoError that names the reward, for anything but a number, a Score or None, and for one too large.
    """
    if given is None:
        return Score(None, "the reward was None")
    score: Score = given if isinstance(given, Score) else Score(given, "custom")
    if score.value is None:
        return score
    if not hasattr(score.value, "__float__"):  # text has none, unlike numbers, NumPy's and tensors
        raise GspoError(
            f"the reward {source} gave {score.value!r:.80}",
            f"it is of type {type(score.value).__name__}; a reward is a number, a Score, or None for none",
            "return float(...) where it is meant as a number",
            ExitCode.ENGINE,
        )
    value = _as_float(score.value)
    if abs(value) > LARGEST:
        raise GspoError(
            f"the reward {source} gave {value:g}",
            f"a reward beyond {LARGEST:g} is squared to infinity, and every advantage with it",
            "scale or clip it in the function",
            ExitCode.ENGINE,
        )
    return Score(None, "the reward was nan") if math.isnan(value) else replace(score, value=value)


def _as_float(number: Any) -> float:
    """A number as a float; a whole number beyond all floats is infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def call_function(function: Callable[..., Any], source: str, batched: bool, responses: Responses) -> list[Score]:
    """The scores by a user's function, whose parameters say what it takes:

    - `completions`: those of all responses, with `prompts` and the columns of the data as lists, as in TRL;
    - `completion`: one response, with `prompt`, `answer` and the columns of the data by name;
    - anything else: (problem, text), or with `batched` the list of them.

    Each may be async. A response for which it raises has no value.
    Errors: GspoError from `as_score`, when a function of many raises, or does not give one reward per response.
    """
    if not responses:
        return []
    accepted = parameters(function)
    in_columns = "completions" in accepted
    if in_columns or batched:
        with users_code(f"the reward {source} failed", ExitCode.ENGINE):
            given = function(**_columns(accepted, responses)) if in_columns else function(responses)
            given = asyncio.run(_awaited(given)) if inspect.isawaitable(given) else given
        if hasattr(given, "tolist"):  # an array or tensor
            given = given.tolist()
        if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != len(responses):
            count = f"{len(given)} rewards" if hasattr(given, "__len__") else f"a {type(given).__name__}"
            takes = "`completions`" if in_columns else "a list of (problem, text)"
            raise GspoError(
                f"the reward {source} gave {count} for {len(responses)} responses",
                f"a reward that takes {takes} gives a list with one reward for each",
                "correct it" if in_columns else "correct it, or remove batched = true",
                ExitCode.ENGINE,
            )
        return [as_score(one, source) for one in given]
    calls = [partial(function, *pair) for pair in responses]
    if "completion" in accepted:
        calls = [partial(function, **chosen(accepted, by_name(*pair))) for pair in responses]
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        return asyncio.run(_gathered(calls, source))
    return [call(one, source, f"the reward {source}") for one in calls]


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """A function's parameters by name; none where Python cannot tell."""
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}


def chosen(accepted: dict[str, inspect.Parameter], values: dict[str, Any]) -> dict[str, Any]:
    """Of the values, those that a function takes: all with `**columns`."""
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in accepted.values())
    return values if takes_all else {name: value for name, value in values.items() if name in accepted}


def by_name(problem: Problem, text: str) -> dict[str, Any]:
    """What a reward gets of one response, by name; where the prompt is messages, as TRL has it, so is the prompt."""
    columns = problem.columns or {"answer": problem.answer}
    return {**columns, "prompt": list(problem.messages) or problem.prompt, "completion": text}


def _columns(accepted: dict[str, inspect.Parameter], responses: Responses) -> dict[str, list[Any]]:
    """The same of many as lists, under TRL's names: a completion of a prompt that is messages is one message."""
    rows = [by_name(*pair) for pair in responses]
    names = dict.fromkeys(name for row in rows for name in row if name not in ("prompt", "completion"))
    values = {name: [row.get(name) for row in rows] for name in names}
    texts = [[{"role": "assistant", "content": text}] if p.messages else text for p, text in responses]
    return chosen(accepted, values | {"prompts": [row["prompt"] for row in rows], "completions": texts})


def call(function: Callable[[], Any], source: str, who: str = "the task") -> Score:
    """The score that a user's function gives; `who` failed if it raises. Errors: as `as_score`."""
    try:
        given = function()
    except GspoError:
        raise
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        return failed(error, who)
    return as_score(given, source)


async def _awaited(given: Awaitable[Any]) -> Any:
    return await given


async def _gathered(calls: list[partial[Any]], source: str) -> list[Score]:
    """All calls, at most `CONCURRENT` at a time."""
    free = asyncio.Semaphore(CONCURRENT)

    async def one(function: partial[Any]) -> Score:
        async with free:
            try:
                given = await function()
            except GspoError:
                raise
            except (Exception, SystemExit) as error:
                return failed(error, f"the reward {source}")
            return as_score(given, source)

    return await asyncio.gather(*map(one, calls))


def failed(error: BaseException, who: str) -> Score:
    """The score of a response for which the user's code failed."""
    return Score(None, f"{who} failed: {explain(error)[:400]}")


def score_part(reward: WeightedReward, of_task: ScoreAll) -> ScoreAll:
    """One of `[[task.rewards]]`; `of_task` = the task's own. Errors: GspoError if it cannot be loaded."""
    if reward.name == "task":
        return of_task
    if not is_plugin(reward.name):
        return built_in(reward)
    return partial(call_function, load_plugin(reward.name, needs=("__call__",)), reward.name, reward.batched)


def weighted(parts: list[tuple[WeightedReward, ScoreAll]], responses: Responses) -> list[Score]:
    """The sum of weight x reward for each response, with every part beside it; no value where one has none.

    The reason is the first part's.
    """
    scores = []
    for row in zip(*(score_all(responses) for _, score_all in parts), strict=True):
        pairs = [(part, score.value) for (part, _), score in zip(parts, row, strict=True)]
        unknown = next((score.reason for score in row if score.value is None), None)
        total = None if unknown else sum(part.weight * value for part, value in pairs if value is not None)
        scores.append(Score(total, unknown or row[0].reason, tuple((part.title, value) for part, value in pairs)))
    return scores
