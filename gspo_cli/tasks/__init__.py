"""The tasks: problems, prompt and reward, one file each.

To add one: write a module with a class of `contract.Task`'s methods and name it below.
"""

import difflib
from collections.abc import Callable

from gspo_cli.config import TaskConfig
from gspo_cli.errors import GspoError
from gspo_cli.tasks.arithmetic import Arithmetic
from gspo_cli.tasks.contract import Task
from gspo_cli.tasks.gsm8k import Gsm8k

TASKS: dict[str, Callable[[TaskConfig], Task]] = {
    "arithmetic": lambda _config: Arithmetic(),
    "gsm8k": Gsm8k,
}


def make_task(config: TaskConfig) -> Task:
    """The task that a recipe names.

    Errors: GspoError for an unknown name, with the nearest one.
    """
    if config.name not in TASKS:
        near = difflib.get_close_matches(config.name, TASKS, n=1)
        raise GspoError(
            f"no task {config.name!r}",
            f"the tasks are {', '.join(TASKS)}",
            f"did you mean {near[0]!r}?" if near else "choose one of them",
        )
    return TASKS[config.name](config)
