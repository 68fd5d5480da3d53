"""What the columns of one's own data may be: the prompt, the answer, and a reward that fits the answers."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.rewards.math.grade import grade_number
from gspo_cli.rows import Row
from gspo_cli.tasks.math import GSM8K_INSTRUCTION, INSTRUCTION, final_number
from gspo_cli.tasks.own_data import PROMPTS

PROMPT_NAMES = (*PROMPTS, "instruction", "query", "conversation", "input")
ANSWER_NAMES = (
    "answer", "final_answer", "solution", "gold", "ground_truth", "target", "label", "reference", "expected", "output",
    "response", "completion",
)  # fmt: skip
LETTER = re.compile(r"\(?[A-Ja-j]\)?[.:)]?")
MATHS = re.compile(r"\\[a-z]+|\$|\^|[0-9]\s*[+*/=-]\s*[0-9a-z]")
SHORT = 6
"""Words up to which a text is an answer that a model can give to the letter."""
ASK = {
    "number": GSM8K_INSTRUCTION,
    "math": INSTRUCTION,
    "choice": 'End with "The answer is X", where X is the letter.',
    "exact": "Reply with the answer alone.",
}
"""What a prompt must ask for, or the reward finds no answer."""


@dataclass(frozen=True)
class Guess:
    """The roles of the columns. None = there is no such column, or no built-in reward that fits."""

    prompt: str
    answer: str | None
    reward: str | None
    chat: bool
    """Whether the prompts are lists of messages."""


def guess_columns(source: str, rows: list[Row]) -> Guess:
    """By the names that columns usually have, else by what they hold.

    Errors: GspoError if no column has text or messages in every row.
    """
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    texts = [n for n, v in columns.items() if all(isinstance(one, str) and one.strip() for one in v)]
    chats = [n for n, v in columns.items() if all(isinstance(one, list) and one and _is_message(one[-1]) for one in v)]
    if not texts and not chats:
        kinds = ", ".join(f"{name} ({type(values[0]).__name__})" for name, values in columns.items())
        raise GspoError(
            f"no column of {source} can be the prompt",
            f"none has text or messages in every row: {kinds}",
            "fill in the rows; or `gspo recipes new NAME` without --data, and docs/prompts.md",
        )
    longest = max(
        texts, key=lambda n: (len(set(columns[n])) > 1, fmean(len(str(one)) for one in columns[n])), default=""
    )
    prompt = _named(PROMPT_NAMES, [*chats, *texts]) or (chats[0] if chats else longest)
    if "tests" in columns or "public_test_cases" in columns:
        return Guess(prompt, None, "code", prompt in chats)
    others = [name for name, values in columns.items() if name != prompt and _are_values(values)]
    by_shape = [name for name in others if not _counts(columns[name]) and len(set(columns[name])) > 1]
    answer = _named(ANSWER_NAMES, others) or max(by_shape, key=lambda n: len(set(columns[n])), default=None)
    reward = None if answer is None else fitting_reward([str(value) for value in columns[answer]])
    return Guess(prompt, answer, reward, prompt in chats)


def fitting_reward(answers: list[str]) -> str | None:
    """The built-in reward for answers of this kind; None for long texts, which no rule compares."""
    kinds: dict[str, Callable[[str], Any]] = {
        "number": lambda text: grade_number("0", final_number(text)).reason != "bad gold",
        "choice": LETTER.fullmatch,
        "math": MATHS.search,
        "exact": lambda text: len(text.split()) <= SHORT,
    }
    return next((name for name, fits in kinds.items() if all(fits(answer.strip()) for answer in answers)), None)


def _named(names: tuple[str, ...], columns: list[str]) -> str | None:
    by_name = {column.casefold(): column for column in reversed(columns)}
    return next((by_name[name] for name in names if name in by_name), None)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value


def _are_values(values: list[Any]) -> bool:
    return all(isinstance(one, str | int | float) and str(one).strip() for one in values)


def _counts(values: list[Any]) -> bool:
    """Whether they just count the rows."""
    numbers = [int(one) for one in values if str(one).strip().isdecimal()]
    return bool(numbers) and numbers == list(range(numbers[0], numbers[0] + len(values)))
