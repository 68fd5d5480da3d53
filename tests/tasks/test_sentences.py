"""The tasks in plain words: right answers, splits, and what counts as an answer."""

import re

import pytest
from program import refusal

from gspo_cli.config import EvalConfig, TaskConfig
from gspo_cli.evals.benchmark import DataChoice
from gspo_cli.evals.benchmarks import find_benchmark
from gspo_cli.tasks import make_task
from gspo_cli.tasks.arithmetic import Arithmetic
from gspo_cli.tasks.sentences import Comparisons, Sentences, Sums

NAMES = ("sums", "comparisons", "stories")


def solve(question: str) -> str:
    """The answer, read from the question and not from the numbers it was made of."""
    first, second = map(int, re.findall(r"\d+", question))
    if "Monday" in question:
        return str(first + second)
    if "Who has more" in question:
        one, other = re.findall(r"(\w+) has \d", question)
        return str(one if first > second else other)
    return str(first + second if " more" in question else first - second)


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_is_right_and_the_splits_share_no_problem(name: str) -> None:
    task = make_task(TaskConfig(name=name))
    train, held_out = task.problems("train"), task.problems("held_out")
    assert (len(train), len(held_out)) == (2000, 200)
    assert len({p.id for p in train} | {p.id for p in held_out}) == 2200
    assert task.problems("train") == train
    for problem in [*train, *held_out]:
        assert solve(problem.id) == problem.answer, problem


@pytest.mark.parametrize(
    ("task", "text", "found"),
    [
        (Sums, "17 + 25 = 42.", "42"),
        (Sums, "The answer is 42", "42"),
        (Sums, "42.0", "42.0"),  # not the number 0
        (Sums, "1,042 apples.", "1,042"),
        (Sums, "forty-two", None),
        (Sums, "", None),
        (Sums, "٤٢", None),  # digits of another script are no answer
        (Comparisons, "Anna has more.", "Anna"),
        (Comparisons, "Tom, not Anna.", "Tom"),
        (Comparisons, "Tommy has more.", None),
        (Comparisons, "52 is more than 7.", None),
    ],
)
def test_the_answer_is_the_last_number_or_the_first_name(task: type[Sentences], text: str, found: str | None) -> None:
    assert task().find(text) == found


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_has_the_held_out_problems(name: str) -> None:
    assert name in EvalConfig(bench=(name,)).bench
    held_out = make_task(TaskConfig(name=name)).problems("held_out")
    assert list(find_benchmark(name).load(DataChoice()).problems) == held_out
    assert "takes no data" in refusal(lambda: find_benchmark(name).load(DataChoice(revision="x")))


def test_only_what_follows_the_thinking_part_counts() -> None:
    for task, answer in ((Sums(), "The sum is {}."), (Comparisons(), "{} has more."), (Arithmetic(), "x={}")):
        problem = task.problems("held_out")[0]
        right = answer.format(problem.answer)
        assert task.reward(problem, f"<think>Tom, 9, =9</think>\n{right}").value == 1
        assert task.reward(problem, f"<think>{right}").reason == "no_answer"
