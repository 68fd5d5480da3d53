"""Rewards tried on made-up responses before a model is loaded: an error here costs seconds, and later hours."""

import re

from gspo_cli.config import TaskConfig
from gspo_cli.errors import ExitCode, GspoError, nearest
from gspo_cli.tasks import Task
from gspo_cli.tasks.rewards import by_name, own_code
from gspo_cli.tasks.scoring import score
from gspo_cli.types import Problem, Response, Score

NUM_PROBLEMS = 3
OTHER = "This is some other text."
ALWAYS = re.compile(
    r"failed: (NameError|UnboundLocalError|ImportError|ModuleNotFoundError|NotImplementedError|SyntaxError):"
)
"""Faults of the code, whatever the response."""

NO_ARGUMENT = re.compile(r"missing \d+ required [\w-]+ arguments?: '(\w+)'")


def try_rewards(task: Task, problems: list[Problem], config: TaskConfig) -> list[str]:
    """Score the reference answer, an empty text and another text for the first problems. Notes: where some of them have
    no reward, and where the reference answer is worth no more than the others.

    Errors: GspoError if none of them has a reward because the code failed or the data do not fit, or where the code
    fails by a name that does not exist, and so on.
    """
    tried = [
        (kind, problem, Response(text, len(text.split())))
        for problem in problems[:NUM_PROBLEMS]
        for kind, text in (("the answer itself", problem.answer), ("an empty response", ""), ("another text", OTHER))
        if text or kind == "an empty response"
    ]
    deadline = config.deadline_s if own_code(config) else None
    try:
        scores = score(task, [(problem, text) for _, problem, text in tried], deadline)
    except GspoError as error:
        error.code = ExitCode.USER_ERROR  # nothing has begun
        error.hint = _which_column(error.why, problems[0]) or error.hint
        raise
    missing = [(kind, problem, one) for (kind, problem, _), one in zip(tried, scores, strict=True) if one.value is None]
    for kind, problem, one in missing:
        if ALWAYS.search(one.reason) or len(missing) == len(tried):
            raise GspoError(
                f"the reward has no value for {kind} to problem {problem.id!r}, tried before training",
                one.reason if one.reason != "bad gold" else f"it cannot compare with the answer {problem.answer!r:.80}",
                _which_column(one.reason, problem)
                or "correct the reward or the data; docs/extending.md has complete examples",
            )
    notes = [f"no reward for {kind} to problem {problem.id!r}: {one.reason}" for kind, problem, one in missing[:1]]
    return notes + _constant([kind for kind, _, _ in tried], scores)


def _which_column(reason: str, problem: Problem) -> str:
    """What to do if a reward failed for want of a parameter that is no column; empty if it did not."""
    missing, columns = NO_ARGUMENT.search(reason), [*by_name(problem, "")]
    if missing is None:
        return ""
    return f"{nearest(missing[1], columns, '')} A reward gets {', '.join(columns)}, by name".lstrip()


def _constant(kinds: list[str], scores: list[Score]) -> list[str]:
    """A note if the answers themselves have the reward of every other text."""
    values = {one.value for one in scores}
    if kinds[0] == "the answer itself" and len(values) == 1 and None not in values:
        return [
            f"the reward is {values.pop():g} for the reference answers, for empty responses and for other text alike"
        ]
    return []
