"""The tasks: problems, prompt and reward, one file each.

To add one: write a module with a class of `contract.Task`'s methods and name it below.
"""

import difflib
from collections.abc import Callable

from gspo_cli.config import TaskConfig
from gspo_cli.errors import GspoError
from gspo_cli.plugins import is_plugin, load_plugin
from gspo_cli.tasks.arithmetic import Arithmetic
from gspo_cli.tasks.contract import Task
from gspo_cli.tasks.gsm8k import Gsm8k
from gspo_cli.tasks.math import Math
from gspo_cli.types import Problem, Score

TASKS: dict[str, Callable[[TaskConfig], Task]] = {
    "arithmetic": lambda _config: Arithmetic(),
    "gsm8k": Gsm8k,
    "math": Math,
}


def make_task(config: TaskConfig) -> Task:
    """The task that a recipe names, with the reward that it names, if any.

    Errors: GspoError for an unknown name, with the nearest one, or for a plugin that is no task.
    """
    task = _find(config)
    if config.reward is not None:
        function = load_plugin(config.reward, needs=("__call__",))

        def reward(problem: Problem, text: str) -> Score:
            given = function(problem, text)
            return given if isinstance(given, Score) else Score(None if given is None else float(given), "custom")

        task.reward = reward  # type: ignore[method-assign]
    return task


def _find(config: TaskConfig) -> Task:
    if is_plugin(config.name):
        made = load_plugin(config.name, needs=())
        task = made(config) if callable(made) else made
        if not isinstance(task, Task):
            raise GspoError(
                f"{config.name!r} is no task",
                "it must give an object with problems(split) and reward(problem, text)",
                "see docs/extending.md for a complete example",
            )
        return task
    if config.name not in TASKS:
        near = difflib.get_close_matches(config.name, TASKS, n=1)
        raise GspoError(
            f"no task {config.name!r}",
            f"the tasks are {', '.join(TASKS)}, or module:attribute for your own",
            f"did you mean {near[0]!r}?" if near else "choose one of them",
        )
    return TASKS[config.name](config)
