"""The rewards that a recipe names without a function of its own: `task.reward = "number"`, or in `[[task.rewards]]`.

To add one, write a function of (the recipe's entry, problem, text) and name it in `SINGLE`, and in `BUILT_IN_REWARDS`
of `task_config.py`.
"""

import json
import re
from collections.abc import Callable
from functools import partial

from gspo_cli.rewards.code.grading import SharedTests, Work, extract_program
from gspo_cli.rewards.math.extract import extract
from gspo_cli.rewards.math.grade import grade_math, grade_number
from gspo_cli.task_config import WeightedReward
from gspo_cli.tasks.code import grade_programs, row_tests
from gspo_cli.tasks.math import final_number, reference
from gspo_cli.types import Problem, Response, Score, visible

LETTER = re.compile(r"\W*(?:(?:option|choice)\s+)?\W*([A-J])(?=\W*$|\**[).:])", re.IGNORECASE)
BAD_ANSWER = Score(None, "bad gold")
"""The row's answer is none that this reward can compare with."""


def number(_: WeightedReward, problem: Problem, text: str) -> Score:
    """1 for the number that the row's answer gives, after `####` if there is one."""
    return grade_number(text, final_number(problem.answer)).score


def maths(_: WeightedReward, problem: Problem, text: str) -> Score:
    """1 for an answer that means the same as the row's, or as its last box."""
    return grade_math(text, reference(problem.answer)).score


def exact(_: WeightedReward, problem: Problem, text: str) -> Score:
    """1 if the whole response, without spaces around it, is the row's answer."""
    return _equal(problem.answer, text)


def choice(_: WeightedReward, problem: Problem, text: str) -> Score:
    """1 for the letter (A to J) of the row's answer: alone, first (`B) Paris`), in a box, or in `the answer is B`."""
    gold, given = LETTER.match(problem.answer), LETTER.match(extract(text).text or visible(text) or "")
    if gold is None:
        return BAD_ANSWER
    return _equal(gold[1].upper(), given[1].upper()) if given else Score(0.0, "no_answer")


def regex(part: WeightedReward, problem: Problem, text: str) -> Score:
    """1 if the pattern occurs in the response; if it has a group, what the last occurrence's first group holds must be
    the row's answer."""
    found = list(re.finditer(part.pattern or "", text, re.DOTALL))
    if not found:
        return Score(0.0, "no_match")
    return _equal(problem.answer, found[-1][1] or "") if found[-1].re.groups else Score(1.0, "match")


def is_json(part: WeightedReward, _: Problem, text: str) -> Score:
    """1 if the response, or the block of code in it, is a JSON object with all `keys`."""
    text = visible(text) or ""
    fenced = re.search(r"```(?:json)?\s*\n(.*?)```", text, re.DOTALL)
    try:
        value = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return Score(0.0, "no_json")
    right = isinstance(value, dict) and all(key in value for key in part.keys)
    return Score(float(right), "json" if right else "keys_missing")


def has_format(part: WeightedReward, _: Problem, text: str) -> Score:
    """1 if the whole response, without spaces around it, matches the pattern."""
    right = re.fullmatch(part.pattern or THINKING, text.strip(), re.DOTALL) is not None
    return Score(float(right), "format" if right else "no_format")


THINKING = r"<think>.*?</think>\s*<answer>.*?</answer>"


def length(part: WeightedReward, _: Problem, text: str) -> Score:
    """0 for up to `tokens[0]` tokens, falling evenly to -1 at `tokens[1]` and beyond."""
    assert part.tokens is not None
    start, end = part.tokens
    size = text.num_tokens if isinstance(text, Response) else len(text.split())
    return Score(0.0 - min(1.0, max(0, size - start) / (end - start)), "length")


def program_scores(responses: list[tuple[Problem, str]]) -> list[Score]:
    """1 for a program that passes the row's tests, run in the sandbox: the column `tests` (an object with the lists
    `inputs` and `outputs`, and `fn_name` for a function), or LiveCodeBench's columns."""
    tests = {problem.id: SharedTests(partial(row_tests, problem.columns)) for problem, _ in responses}
    return grade_programs(
        [Work(extract_program(text)[0], tests[problem.id]) for problem, text in responses], "official"
    )


def _equal(answer: str, text: str) -> Score:
    """1 for the same text, without spaces around it; no value without an answer."""
    if not answer.strip():
        return BAD_ANSWER
    return Score(1.0, "correct") if answer.strip() == text.strip() else Score(0.0, "wrong")


SINGLE: dict[str, Callable[[WeightedReward, Problem, str], Score]] = {
    "number": number, "math": maths, "exact": exact, "choice": choice, "regex": regex, "json": is_json,
    "format": has_format, "length": length,
}  # fmt: skip


def built_in(part: WeightedReward) -> Callable[[list[tuple[Problem, str]]], list[Score]]:
    """The rewards of many responses by one of them."""
    if part.name == "code":
        return program_scores
    return lambda responses: [SINGLE[part.name](part, *pair) for pair in responses]
