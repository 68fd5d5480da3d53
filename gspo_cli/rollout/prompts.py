"""From problems to the token ids that the model gets, and from the tokens that it draws back to text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from gspo_cli.config import TaskConfig
from gspo_cli.errors import GspoError
from gspo_cli.rollout.chat_template import TemplateError, render
from gspo_cli.types import Problem, Prompt, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gspo_cli.rollout.plain_tokenizer import PlainTokenizer

    AnyTokenizer: TypeAlias = PlainTokenizer | PreTrainedTokenizerBase

TEMPLATE_TOKENS = 512
"""More than a chat template adds to a prompt."""
PLAIN = TaskConfig()
"""The chat template if the tokenizer has one, and nothing else."""
THINK, TAIL = "<think>", 16
"""What opens a thinking part, and more tokens than it and the line breaks after it."""
BEFORE = "a\n"
"""A text whose last token joins no token that follows it."""


def encode(tokenizer: AnyTokenizer, problem: Problem, task: TaskConfig = PLAIN) -> Prompt:
    """The prompt's token ids, by the tokenizer's chat template if it has one and `task.chat` does not say otherwise.

    Errors: GspoError for an empty prompt, or where the chat template is missing or refuses what the task asks for.
    """
    if uses_chat(tokenizer, task):
        ids = _by_chat_template(tokenizer, problem, task)
    elif problem.messages or task.system is not None or task.chat_template_kwargs:
        asked = "task.system" if task.system is not None else "task.chat_template_kwargs"
        raise _no_template("the prompt consists of messages" if problem.messages else asked)
    else:
        before, _ = added_ids(tokenizer)
        ids = bare_ids(tokenizer, problem.prompt)
        ids = ids if ids[: len(before)] == before else before + ids  # some data have BOS in their text
    if not ids:
        raise GspoError(f"problem {problem.id!r} has an empty prompt", "it gives no tokens", "remove it from the data")
    return Prompt(problem.id, tuple(ids))


def uses_chat(tokenizer: AnyTokenizer, task: TaskConfig) -> bool:
    """Whether prompts go through the chat template."""
    return bool(tokenizer.chat_template) if task.chat is None else task.chat


def encode_response(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """A response's token ids as they follow a prompt, EOS included.

    Nothing that a tokenizer puts around a text is among them: no space before its first word, and no BOS, not even one
    that the data write in front of it.
    """
    if tokenizer.bos_token and tokenizer.bos_token != tokenizer.eos_token:
        text = text.removeprefix(str(tokenizer.bos_token))
    before, both = bare_ids(tokenizer, BEFORE), bare_ids(tokenizer, BEFORE + text)
    ids = both[len(before) :] if both[: len(before)] == before else bare_ids(tokenizer, text)
    return ids if ids[-1:] == [tokenizer.eos_token_id] else [*ids, tokenizer.eos_token_id]


def bare_ids(tokenizer: AnyTokenizer, text: str, add_special_tokens: bool = False) -> list[int]:
    """The token ids of the text alone, or with what the tokenizer puts around it. Errors: GspoError."""
    try:
        ids: list[int] = tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
    except Exception as error:  # the library raises almost anything over a broken file
        raise GspoError(
            "the tokenizer fails on a text",
            f"{type(error).__name__}: {error}",
            "check its tokenizer.json and tokenizer_config.json",
        ) from error
    return ids


def added_ids(tokenizer: AnyTokenizer) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and after a text, such as BOS and EOS, or [CLS] and [SEP]."""
    bare, whole = bare_ids(tokenizer, BEFORE), bare_ids(tokenizer, BEFORE, add_special_tokens=True)
    start = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
    return whole[:start], whole[start + len(bare) :]


def opened_thinking(tokenizer: AnyTokenizer, prompt: Prompt) -> str:
    """`<think>` if the prompt, usually its chat template, opens the thinking part: what rewards and graders must see in
    front of the response to tell whether it was closed."""
    return THINK if str(tokenizer.decode(list(prompt.token_ids[-TAIL:]))).rstrip().endswith(THINK) else ""


def prompt_notes(tokenizer: AnyTokenizer, prompt: Prompt, task: TaskConfig = PLAIN) -> list[str]:
    """Warnings about the end of prompts: a model takes a text that ends in EOS for finished."""
    chat, end, notes = uses_chat(tokenizer, task), added_ids(tokenizer)[1], []
    if end and not chat:
        notes.append(f"the tokenizer puts {tokenizer.decode(end)!r} after every text; prompts are used without it")
    if prompt.token_ids[-1] == tokenizer.eos_token_id:
        source = "chat template" if chat else "text of the problem"
        notes.append(f"prompts end in {tokenizer.eos_token!r}, which ends a response: the {source} writes it")
    return notes


def _by_chat_template(tokenizer: AnyTokenizer, problem: Problem, task: TaskConfig) -> list[int]:
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
    messages = [*system, *map(dict, problem.messages or [{"role": "user", "content": problem.prompt}])]
    variables = tokenizer.special_tokens_map | task.chat_template_kwargs
    try:
        text = render(str(tokenizer.get_chat_template()), messages, variables)
    except (TemplateError, ValueError) as error:
        raise GspoError(
            "the chat template refuses the prompt",
            str(error),
            "some templates take no system prompt: put that text into task.template; `task.chat = false` in a recipe "
            "does without the template",
        ) from error
    return bare_ids(tokenizer, text)


def _no_template(setting: str) -> GspoError:
    return GspoError(
        f"{setting}, but the tokenizer has no chat template",
        "without one there are no roles, only text; base models usually have none",
        "put the text into task.template, or use a chat model",
    )


def fitting(
    problems: list[Problem], tokenizer: AnyTokenizer, limit: int | None, max_new_tokens: int,
    task: TaskConfig = PLAIN,
) -> list[Problem]:  # fmt: skip
    """The problems whose prompt leaves room for a response within `limit` tokens; with `task.too_long = "drop"`, the
    others are left out.

    Errors: GspoError for the first that does not fit, unless they are dropped.
    """
    if limit is None:
        return problems
    kept = []
    for problem in problems:
        added = TEMPLATE_TOKENS * max(1, len(problem.messages)) + len((task.system or "").encode())
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

    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.content in stops}

    def stopped(size: int) -> bool:
        ids = list(sample.token_ids[:size])
        text = str(tokenizer.decode(ids, skip_special_tokens=True))
        return not special.isdisjoint(ids) or any(stop in text for stop in stops)

    num = len(sample.token_ids)
    # the text of more tokens holds that of fewer, so a search by halves finds it
    low = 1 + bisect_left(range(1, num + 1), True, key=stopped)
    if low > num or (low == num and sample.finish == "stop"):
        return sample
    routes = sample.routes_TLK
    return replace(
        sample, token_ids=sample.token_ids[:low], log_probs=sample.log_probs[:low], finish="stop_string",
        routes_TLK=None if routes is None else routes[: num_prompt_tokens + low - 1],
    )  # fmt: skip


def describe_prompt(tokenizer: AnyTokenizer, prompt: Prompt) -> tuple[str, list[int], list[str]]:
    """The prompt as the model gets it: its text with special tokens, its token ids, and the text of each."""
    ids = list(prompt.token_ids)
    return str(tokenizer.decode(ids)), ids, pieces(tokenizer, ids)


def pieces(tokenizer: AnyTokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token, with its leading space, which a decoder of SentencePiece drops at the start of a text."""
    before = bare_ids(tokenizer, "a")
    skipped = len(tokenizer.decode(before))
    return [str(tokenizer.decode([*before, one]))[skipped:] for one in ids]
