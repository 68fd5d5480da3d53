"""The rewards that a recipe names beside or in place of the task's own: functions, and the built-in ones."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gspo_cli.config import TaskConfig, WeightedReward
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.plugins import is_plugin, load_plugin
from gspo_cli.types import Problem, Response, Score

Responses = list[tuple[Problem, str]]
ScoreAll = Callable[[Responses], list[Score]]
LARGEST = 1e9
"""Rewards are squared and summed in float32, where 1e19 is infinite; nothing meant as a reward is near either."""
CONCURRENT = 64
"""Calls of an async reward that wait at the same time."""


def own_code(config: TaskConfig) -> bool:
    """Whether scoring runs the user's code."""
    names = (config.name, config.reward or "", *(reward.name for reward in config.rewards))
    return any(map(is_plugin, names))


def as_score(given: Any, source: str) -> Score:
    """What a reward gave, as a Score. NaN has no value: the response is left out, not counted as wrong.

    Errors: GspoError that names the reward, for anything but a number, a Score or None, and for one too large.
    """
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
    """The scores by a user's function: of one (problem, text), or with `batched` of the list of them; either may be
    async. A response for which it raises has no value.

    Errors: GspoError from `as_score`, and when a batched function does not give one reward per response.
    """
    if not responses:
        return []
    if batched:
        given = function(responses)
        given = asyncio.run(_awaited(given)) if inspect.isawaitable(given) else given
        if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != len(responses):
            count = f"{len(given)} rewards" if hasattr(given, "__len__") else f"a {type(given).__name__}"
            raise GspoError(
                f"the reward {source} gave {count} for {len(responses)} responses",
                "a batched reward gets a list of (problem, text) and gives a list with one reward for each",
                "correct it, or remove batched = true",
                ExitCode.ENGINE,
            )
        return [as_score(one, source) for one in given]
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        return asyncio.run(_gathered(function, source, responses))
    return [call(partial(function, *pair), source) for pair in responses]


def call(function: Callable[[], Any], source: str) -> Score:
    """The score that a user's function gives. Errors: as `as_score`."""
    try:
        given = function()
    except GspoError:
        raise
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        return failed(error)
    return as_score(given, source)


async def _awaited(given: Awaitable[Any]) -> Any:
    return await given


async def _gathered(function: Callable[..., Any], source: str, responses: Responses) -> list[Score]:
    """All calls, at most `CONCURRENT` at a time."""
    free = asyncio.Semaphore(CONCURRENT)

    async def one(pair: tuple[Problem, str]) -> Score:
        async with free:
            try:
                given = await function(*pair)
            except GspoError:
                raise
            except (Exception, SystemExit) as error:
                return failed(error)
            return as_score(given, source)

    return await asyncio.gather(*map(one, responses))


def failed(error: BaseException) -> Score:
    """The score of a response for which the user's code failed."""
    return Score(None, f"the task failed: {type(error).__name__}: {str(error)[:200]}")


def by_function(name: str, batched: bool = False) -> ScoreAll:
    """A user's reward. Errors: GspoError if it cannot be loaded or called."""
    return partial(call_function, load_plugin(name, needs=("__call__",)), name, batched)


def score_part(reward: WeightedReward, of_task: ScoreAll) -> ScoreAll:
    """One of `[[task.rewards]]`; `of_task` = the task's own. Errors: GspoError if it cannot be loaded."""
    if reward.name == "task":
        return of_task
    if reward.name == "format":
        pattern = re.compile(reward.pattern, re.DOTALL)
        return lambda responses: [format_score(pattern, text) for _, text in responses]
    if reward.name == "length":
        assert reward.tokens is not None
        start, end = reward.tokens
        return lambda responses: [length_score(start, end, text) for _, text in responses]
    return by_function(reward.name, reward.batched)


def format_score(pattern: re.Pattern[str], text: str) -> Score:
    """1 if the whole response, without spaces around it, matches the pattern."""
    right = pattern.fullmatch(text.strip()) is not None
    return Score(float(right), "format" if right else "no_format")


def length_score(start: int, end: int, text: str) -> Score:
    """0 for up to `start` tokens, falling evenly to -1 at `end` tokens and beyond."""
    length = text.num_tokens if isinstance(text, Response) else len(text.split())
    return Score(0.0 - min(1.0, max(0, length - start) / (end - start)), "length")


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
