"""From problems to the token ids that the model gets, and from the tokens that it draws back to text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gspo_cli.config import TaskConfig
from gspo_cli.errors import GspoError
from gspo_cli.types import Problem, Prompt, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATE_TOKENS = 512
"""More than a chat template adds to a prompt."""
PLAIN = TaskConfig()
"""The chat template if the tokenizer has one, and nothing else."""


def encode(tokenizer: PreTrainedTokenizerBase, problem: Problem, task: TaskConfig = PLAIN) -> Prompt:
    """The prompt's token ids, by the tokenizer's chat template if it has one and `task.chat` does not say otherwise.

    Errors: GspoError for an empty prompt, or where the chat template is missing or refuses what the task asks for.
    """
    chat = bool(tokenizer.chat_template) if task.chat is None else task.chat
    if chat:
        ids = _by_chat_template(tokenizer, problem, task)
    elif task.system is not None or task.chat_template_kwargs:
        raise _no_template("task.system" if task.system is not None else "task.chat_template_kwargs")
    else:
        ids = tokenizer(problem.prompt)["input_ids"]
    if not ids:
        raise GspoError(f"problem {problem.id!r} has an empty prompt", "it gives no tokens", "remove it from the data")
    return Prompt(problem.id, tuple(ids))


def _by_chat_template(tokenizer: PreTrainedTokenizerBase, problem: Problem, task: TaskConfig) -> list[int]:
    if not tokenizer.chat_template:
        raise _no_template("task.chat = true")
    for key in task.chat_template_kwargs:
        if key not in str(tokenizer.chat_template):
            raise GspoError(
                f"task.chat_template_kwargs.{key}: the chat template has no such variable",
                "a variable that a template does not use changes nothing, without a word",
                "check its name in the chat template of the model's tokenizer",
            )
    system = [] if task.system is None else [{"role": "system", "content": task.system}]
    messages = [*system, {"role": "user", "content": problem.prompt}]
    try:
        ids: list[int] = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False, **task.chat_template_kwargs
        )
    except Exception as error:  # a template is code of the model's authors, and raises what it likes
        raise GspoError(
            "the chat template refuses the prompt",
            f"{type(error).__name__}: {error}",
            "some templates take no system prompt: put that text into task.template; or --set task.chat=false",
        ) from error
    return ids


def _no_template(setting: str) -> GspoError:
    return GspoError(
        f"{setting}, but the tokenizer has no chat template",
        "without one there are no roles, only text; base models usually have none",
        "put the text into task.template, or use a chat model",
    )


def fitting(
    problems: list[Problem], tokenizer: PreTrainedTokenizerBase, limit: int | None, max_new_tokens: int,
    task: TaskConfig = PLAIN,
) -> list[Problem]:  # fmt: skip
    """The problems whose prompt leaves room for a response within `limit` tokens; with `task.too_long = "drop"`, the
    others are left out.

    Errors: GspoError for the first that does not fit, unless they are dropped.
    """
    if limit is None:
        return problems
    kept, added = [], TEMPLATE_TOKENS + len((task.system or "").encode())
    for problem in problems:
        # a token is a byte at least, and a template adds a few: most problems need not be encoded to know
        if len(problem.prompt.encode()) + added + max_new_tokens > limit:
            length = len(encode(tokenizer, problem, task).token_ids)
            if length + max_new_tokens > limit:
                if task.too_long == "drop":
                    continue
                raise GspoError(
                    f"the prompt of problem {problem.id!r} is too long: {length} tokens",
                    f"with rollout.max_new_tokens = {max_new_tokens} it exceeds the model's {limit} positions",
                    "lower rollout.max_new_tokens, remove it, or leave out such problems: --set task.too_long=drop",
                )
        kept.append(problem)
    return kept


def decode(tokenizer: PreTrainedTokenizerBase, sample: Sample) -> str:
    """The response as text for scoring, without special tokens such as EOS."""
    return str(tokenizer.decode(list(sample.token_ids), skip_special_tokens=True))


def cut_at_stop(
    tokenizer: PreTrainedTokenizerBase, sample: Sample, stops: tuple[str, ...], num_prompt_tokens: int
) -> Sample:
    """The sample up to the token that completes the first stop string, which stays in it.

    What was drawn before does not depend on what followed, so the log-probabilities stay those of the tokens.
    """
    if not any(stop in decode(tokenizer, sample) for stop in stops):
        return sample
    low, high = 1, len(sample.token_ids)  # the text of more tokens holds that of fewer, so a search by halves finds it
    while low < high:
        middle = (low + high) // 2
        text = str(tokenizer.decode(list(sample.token_ids[:middle]), skip_special_tokens=True))
        low, high = (low, middle) if any(stop in text for stop in stops) else (middle + 1, high)
    if low == len(sample.token_ids) and sample.finish == "stop":
        return sample
    routes = sample.routes_TLK
    return replace(
        sample, token_ids=sample.token_ids[:low], log_probs=sample.log_probs[:low], finish="stop_string",
        routes_TLK=None if routes is None else routes[: num_prompt_tokens + low - 1],
    )  # fmt: skip


def describe_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> tuple[str, list[int], list[str]]:
    """The prompt as the model gets it: its text with special tokens, its token ids, and the text of each."""
    ids = list(prompt.token_ids)
    return str(tokenizer.decode(ids)), ids, [str(tokenizer.decode([one])) for one in ids]
