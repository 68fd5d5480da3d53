"""A key of `[task]` is used by the task, or refused: never dropped."""

from __future__ import annotations

from typing import Any

import pytest

from gspo_cli.config import TaskConfig
from gspo_cli.errors import GspoError
from gspo_cli.tasks import OF_SOME, TASKS, make_task

VALUES: dict[str, Any] = {
    "path": "x.jsonl", "columns": {"prompt": "q"}, "revision": "0" * 40, "grader": "script", "held_out": 0.1,
    "environment": "not-installed", "args": {"split": "test"},
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
        with pytest.raises(GspoError, match=f"task.{key} is no key of the task '{task}'"):
            make_task(config)
