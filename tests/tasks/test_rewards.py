"""Rewards of one's own and several with weights: what is refused by name, how they are called, and when they end.
A key of `[task]` is used by the task, or refused."""

import asyncio
import math
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from program import refusal

from gspo_cli.config import TaskConfig
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.tasks import OF_SOME, TASKS, make_task, read_problems, scoring
from gspo_cli.tasks.rewards import LARGEST
from gspo_cli.tasks.scoring import score
from gspo_cli.types import Problem, Response, Score

PROBLEM = Problem("p", "1+2+3=", "6")
RIGHT, WRONG = (PROBLEM, Response("6", 4)), (PROBLEM, Response("7", 12))


class Mine:
    """A task of the user's own."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def problems(self, _split: str) -> Any:
        return self.given

    def reward(self, _problem: Problem, _text: str) -> Any:
        return Score(0.0, "x")


def scores(rewards: list[dict[str, Any]], *responses: tuple[Problem, str]) -> list[Score]:
    task = make_task(TaskConfig.model_validate({"rewards": rewards}))
    return score(task, list(responses))


@pytest.mark.parametrize(
    ("given", "said"),
    [("0.5", "'0.5'"), ([1.0], "[1.0]"), (1e308, "1e+308"), (10**400, "inf"), (math.inf, "inf"), (-math.inf, "-inf"),
     (Score(2 * LARGEST, "x"), "2e+09"), (Score("1", "x"), "'1'")],  # type: ignore[arg-type]
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("batched", [False, True])
def test_what_is_no_reward_is_refused_by_name(own: Any, given: Any, said: str, batched: bool) -> None:
    own.mine = (lambda responses: [given for _ in responses]) if batched else (lambda _problem, _text: given)
    with pytest.raises(GspoError) as refused:
        scores([{"name": "own_rewards:mine", "batched": batched}], RIGHT)
    assert refused.value.message.startswith("the reward own_rewards:mine gave ") and said in refused.value.message
    assert refused.value.code is ExitCode.ENGINE


def test_sys_exit_in_a_reward_is_a_failure_of_one_response_and_not_the_end(own: Any) -> None:
    def leave(_problem: Problem, text: str) -> float:
        return sys.exit(3) if text == "7" else 1.0

    own.mine = leave
    found = scores([{"name": "own_rewards:mine"}], RIGHT, WRONG)
    assert [score.value for score in found] == [1.0, None] and "SystemExit: 3" in found[1].reason


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([Problem("a", "1=", "1"), Problem("a", "2=", "2")], "two problems have the id 'a'"),
        ([("a", "1=", "1")], "problem 1 is ('a'"),
        ([Problem("a", "1=", "1"), Problem("b", None, "2")], "problem 2 is Problem(id='b', prompt=None"),  # type: ignore[arg-type]
        ([Problem(7, "1=", "1")], "problem 1 is Problem(id=7"),  # type: ignore[arg-type]
    ],
)
def test_problems_that_cannot_be_told_apart_or_asked_are_refused(own: Any, given: list[Any], said: str) -> None:
    own.Mine = lambda _config: Mine(given)
    config = TaskConfig(name="own_rewards:Mine")
    with pytest.raises(GspoError) as refused:
        read_problems(make_task(config), config)
    assert said in refused.value.message and refused.value.code is ExitCode.USER_ERROR


@pytest.mark.parametrize("given", [1, True, 0.5, np.float32(0.5), np.int64(2), None, Score(0.25, "x")], ids=repr)
def test_numbers_of_all_kinds_are_taken(own: Any, given: Any) -> None:
    own.mine = lambda _problem, _text: given
    [found] = score(make_task(TaskConfig(reward="own_rewards:mine")), [RIGHT])
    value = given.value if isinstance(given, Score) else given
    assert found.value == (None if value is None else float(value))
    assert given is not None or found.reason == "the reward was None"


def test_nan_and_failures_have_no_value(own: Any) -> None:
    own.nan, own.fails = lambda _problem, _text: math.nan, lambda _problem, _text: 1 / 0
    [nan] = score(make_task(TaskConfig(reward="own_rewards:nan")), [RIGHT])
    [fails] = score(make_task(TaskConfig(reward="own_rewards:fails")), [RIGHT])
    assert nan == Score(None, "the reward was nan")
    assert fails.value is None and "ZeroDivisionError" in fails.reason


def test_several_rewards_are_summed_by_weight_and_kept_apart(own: Any) -> None:
    own.style = lambda _problem, text: len(text) / 2
    rewards = [
        {"name": "task"},
        {"name": "length", "weight": 0.5, "tokens": [4, 12]},
        {"name": "format", "weight": 0.25, "pattern": r"\d"},
        {"name": "own_rewards:style", "weight": -1.0, "label": "mine"},
    ]
    right, wrong = scores(rewards, RIGHT, WRONG)
    # 1 + 0.5 * 0 + 0.25 * 1 - 0.5 = 0.75; 0 + 0.5 * -1 + 0.25 - 0.5 = -0.75
    assert (right.value, right.reason) == (0.75, "correct") and (wrong.value, wrong.reason) == (-0.75, "wrong")
    assert wrong.parts == (("task", 0.0), ("length", -1.0), ("format", 1.0), ("mine", 0.5))


def test_a_response_without_one_of_its_rewards_has_none(own: Any) -> None:
    own.judge = lambda _problem, text: None if text == "7" else 1.0
    right, wrong = scores([{"name": "task"}, {"name": "own_rewards:judge"}], RIGHT, WRONG)
    assert right.value == 2.0 and wrong.value is None
    assert wrong.parts == (("task", 0.0), ("judge", None))


def test_an_async_reward_waits_for_all_at_once(own: Any) -> None:
    waiting, most = 0, 0

    async def judge(_problem: Problem, text: str) -> float:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0)
        waiting -= 1
        return float(text)

    async def judge_all(responses: list[tuple[Problem, str]]) -> list[float]:
        return [await judge(*pair) for pair in responses]

    own.judge, own.judge_all = judge, judge_all
    assert [s.value for s in scores([{"name": "own_rewards:judge"}], RIGHT, WRONG)] == [6.0, 7.0]
    assert most == 2
    batched = [{"name": "own_rewards:judge_all", "batched": True}]
    assert [s.value for s in scores(batched, RIGHT, WRONG)] == [6.0, 7.0]


@pytest.mark.parametrize("given", [[1.0], 3.0, "12", None], ids=repr)
def test_a_batched_reward_gives_one_for_each(own: Any, given: Any) -> None:
    own.mine = lambda _responses: given
    with pytest.raises(GspoError, match=r"own_rewards:mine gave .* for 2 responses"):
        scores([{"name": "own_rewards:mine", "batched": True}], RIGHT, WRONG)


def test_a_slow_reward_is_shown_and_ended_at_its_deadline(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function blocks for an hour in a system call and swallows exceptions; only the deadline ends it."""
    shown: list[str] = []
    monkeypatch.setattr(scoring, "FIRST_NOTE_S", 0.05)
    monkeypatch.setattr(scoring, "_notes", [shown.append])

    def slow(_problem: Problem, _text: str) -> float:
        try:
            time.sleep(3600)
        except Exception:
            return 1.0
        return 0.0

    own.slow = slow
    task = make_task(TaskConfig(reward="own_rewards:slow"))
    said = refusal(score, task, [RIGHT, WRONG], 0.5)
    assert "scoring took longer than 0.5 s: 0 of 2 responses" in said and "task.deadline_s" in said
    assert shown and shown[0].startswith("scoring 2 responses: ")


def test_an_interrupt_while_scoring_begins_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        score(make_task(TaskConfig()), [RIGHT], 9.0)


VALUES: dict[str, Any] = {
    "path": "x.jsonl", "columns": {"prompt": "q"}, "revision": "0" * 40, "grader": "script", "held_out": 0.1,
    "environment": "not-installed", "args": {"split": "test"}, "guesses": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("key", OF_SOME)
@pytest.mark.parametrize("task", TASKS)
def test_a_key_of_another_task_is_refused(task: str, key: str) -> None:
    config = TaskConfig(name=task, reward="number", **{key: VALUES[key]})
    if task == "verifiers" and task in OF_SOME[key]:
        with pytest.raises(GspoError, match=r"without an environment|needs the library|cannot be imported"):
            make_task(config)
    elif task in OF_SOME[key]:
        made = make_task(config)
        assert getattr(made, "config", config) == config
    else:
        assert f"task.{key} is no key of the task '{task}'" in refusal(make_task, config)
