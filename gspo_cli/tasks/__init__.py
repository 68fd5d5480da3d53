"""The tasks: problems, prompt and reward, one file each."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Protocol, cast, runtime_checkable

from gspo_cli.config import TaskConfig
from gspo_cli.errors import GspoError, nearest
from gspo_cli.plugins import is_plugin, load_plugin, users_code
from gspo_cli.task_config import BUILT_IN_REWARDS, WeightedReward
from gspo_cli.tasks.arithmetic import Arithmetic
from gspo_cli.tasks.code import Code
from gspo_cli.tasks.data import fill
from gspo_cli.tasks.math import Gsm8k, Math
from gspo_cli.tasks.own_data import OwnData
from gspo_cli.tasks.rewards import ScoreAll, call, score_part, weighted
from gspo_cli.tasks.sentences import Comparisons, Stories, Sums
from gspo_cli.tasks.verifiers import Verifiers
from gspo_cli.types import Problem, Score


@runtime_checkable
class Task(Protocol):
    """The seam for one's own task."""

    def problems(self, split: str) -> list[Problem]:
        """The problems of a split, always the same ones in the same order; at least one."""

    def reward(self, problem: Problem, text: str) -> Score:
        """The score of one response. It must be deterministic and must not trust the text."""


@runtime_checkable
class Batched(Protocol):
    """A task whose rewards take time, and are quicker many at once."""

    def rewards(self, responses: list[tuple[Problem, str]]) -> list[Score]:
        """What `reward` says of each, in order."""


@runtime_checkable
class Noting(Protocol):
    """A task that has something to say about its problems."""

    notes: list[str]
    """Filled by `problems`: rows that were left out."""


@runtime_checkable
class Crediting(Protocol):
    """A task that says which tokens of a response earned or spoiled the reward."""

    def token_credits(self, problem: Problem, tokens: list[str]) -> list[float]:
        """A factor on the advantage of each token, e.g. 0 for tokens that carry no decision."""


@runtime_checkable
class Templated(Protocol):
    """A task that puts its questions into `task.template` itself, without the instruction that it adds otherwise."""

    default_template: str


@runtime_checkable
class Demonstrated(Protocol):
    """A task that can also show how it is done, for a cold start."""

    def demonstrations(self, seed: int, size: int) -> list[tuple[str, str]]:
        """`size` pairs of prompt and response."""


TASKS: dict[str, Callable[[TaskConfig], Task]] = {
    "arithmetic": lambda config: Arithmetic(config.terms, config.guesses),
    "gsm8k": Gsm8k,
    "math": Math,
    "code": Code,
    "data": OwnData,
    "verifiers": Verifiers,
    "sums": lambda _config: Sums(),
    "comparisons": lambda _config: Comparisons(),
    "stories": lambda _config: Stories(),
}

WITH_DATA = ("data", "gsm8k", "math", "code")
OF_SOME = {
    "path": WITH_DATA,
    "columns": WITH_DATA,
    "held_out": ("data", "verifiers"),
    "environment": ("verifiers",),
    "args": ("verifiers",),
    "revision": ("data", "gsm8k", "math"),
    "grader": ("code",),
    "guesses": ("arithmetic",),
}
"""Keys of `[task]` that only some of the tasks have."""


def make_task(config: TaskConfig) -> Task:
    """The task that a recipe names, with the reward that it names, if any.

    Errors: GspoError for an unknown name, with the nearest one, for a plugin that is no task, or for a key that the
    task does not have.
    """
    for key, names in OF_SOME.items():
        if config.name in TASKS and config.name not in names and getattr(config, key) != getattr(TaskConfig(), key):
            raise GspoError(
                f"task.{key} is no key of the task {config.name!r}", f"it is one of {', '.join(names)}",
                f"remove it, or choose such a task: --set task.name={names[0]}",
            )  # fmt: skip
    task = _find(config)
    if config.name == "data" and "task" in ([part.name for part in config.rewards] or [config.reward or "task"]):
        raise GspoError(
            "task data without a reward",
            "it has none of its own",
            f"give task.reward: {', '.join(BUILT_IN_REWARDS[:5])}, ..., or module:function (docs/extending.md)",
        )
    own = _own_rewards(task)
    if config.template is not None and not isinstance(task, Templated):
        task = _in_template(task, config.template)
    if config.rewards:
        score_all: ScoreAll = partial(weighted, [(part, score_part(part, own)) for part in config.rewards])
    elif config.reward is not None:
        score_all = score_part(WeightedReward(name=config.reward), own)
    else:
        return task
    task.rewards = score_all  # type: ignore[attr-defined]
    task.reward = lambda problem, text: score_all([(problem, text)])[0]  # type: ignore[method-assign]
    return task


def _in_template(task: Task, template: str) -> Task:
    """The task with its questions in a template, in problems and in demonstrations alike.

    The task itself stays as it is, so that it makes its demonstrations from the bare questions.
    """
    optional = ("rewards", "token_credits", "notes")
    outer = SimpleNamespace(
        reward=task.reward, **{name: getattr(task, name) for name in optional if hasattr(task, name)}
    )

    def problems(split: str) -> list[Problem]:
        found = [replace(p, prompt=fill(template, p.prompt)) for p in task.problems(split)]
        if any(problem.messages for problem in found):
            raise GspoError(
                "task.template, but the prompts of the task are messages",
                "a template is one text, and would not be used",
                "leave it out; task.system adds a system prompt",
            )
        if isinstance(task, Noting):
            outer.notes = task.notes
        return found

    outer.problems = problems
    if isinstance(task, Demonstrated):
        shown = task.demonstrations
        outer.demonstrations = lambda seed, size: [(fill(template, prompt), text) for prompt, text in shown(seed, size)]
    return cast(Task, outer)


def _own_rewards(task: Task) -> ScoreAll:
    """The task's rewards of many responses, before the recipe's take their place."""
    source, reward = f"of task {type(task).__name__}", task.reward
    if isinstance(task, Batched):
        return task.rewards
    return lambda responses: [call(partial(reward, *pair), source) for pair in responses]


def read_problems(task: Task, config: TaskConfig) -> list[Problem]:
    """The task's problems of the recipe's split. Errors: GspoError if the user's code fails, gives anything but
    problems with text, or gives an id twice."""
    source = f"the task {config.name!r}"
    with users_code(f"{source} failed in problems({config.split!r})"):
        problems = list(task.problems(config.split))
    seen = set[str]()
    for number, problem in enumerate(problems, start=1):
        texts = isinstance(problem, Problem) and (problem.id, problem.prompt, problem.answer)
        if not texts or not all(isinstance(text, str) for text in texts):
            raise GspoError(
                f"{source}: problem {number} is {problem!r:.80}",
                "problems() gives Problem(id, prompt, answer), all three texts",
                "docs/extending.md has a complete example",
            )
        if problem.id in seen:
            raise GspoError(
                f"{source}: two problems have the id {problem.id!r:.80}",
                "samples and seeds are told apart by the id, so one problem would take the other's place",
                "give each problem an id of its own",
            )
        seen.add(problem.id)
    return problems


def _find(config: TaskConfig) -> Task:
    if is_plugin(config.name):
        made = load_plugin(config.name, needs=())
        with users_code(f"cannot make the task {config.name!r}"):
            task = made(config) if callable(made) else made
        if not isinstance(task, Task):
            raise GspoError(
                f"{config.name!r} is no task",
                "it must give an object with problems(split) and reward(problem, text)",
                "see docs/extending.md for a complete example",
            )
        return task
    if config.name not in TASKS:
        raise GspoError(
            f"no task {config.name!r}",
            f"the tasks are {', '.join(TASKS)}, or module:attribute for your own",
            nearest(config.name, TASKS, "choose one of them"),
        )
    return TASKS[config.name](config)
