"""The built-in task: splits that never meet, exact rewards, imperfect demonstrations."""

import random

import pytest

from gspo_cli.config import TaskConfig
from gspo_cli.tasks import make_task
from gspo_cli.tasks.arithmetic import (
    GUESS_SHARE,
    NUM_HELD_OUT,
    NUM_TRAIN,
    Arithmetic,
    demonstrate,
    draw_problems,
    is_held_out,
)
from gspo_cli.types import Problem


def total(prompt: str) -> int:
    return sum(int(t) for t in prompt.rstrip("=").split("+"))


def test_splits_are_disjoint_and_fixed() -> None:
    task = Arithmetic()
    train, held_out = task.problems("train"), task.problems("held_out")
    assert (len(train), len(held_out)) == (NUM_TRAIN, NUM_HELD_OUT)
    assert not {p.id for p in train} & {p.id for p in held_out}
    assert len({p.id for p in train}) == NUM_TRAIN
    assert not any(is_held_out(p.id) for p in train) and all(is_held_out(p.id) for p in held_out)
    assert held_out == [*draw_problems.__wrapped__(held_out=True)]  # drawn again
    assert all(str(total(p.prompt)) == p.answer for p in train + held_out)


@pytest.mark.parametrize(
    ("text", "value", "reason"),
    [("17+2=19", 1.0, "correct"), ("19", 1.0, "correct"), ("=19", 1.0, "correct"), ("17+2=18", 0.0, "wrong"),
     ("17+2=019", 0.0, "wrong"), ("17+2=", 0.0, "no_answer"), ("", 0.0, "no_answer"), ("17+2", 0.0, "no_answer"),
     ("19 ", 0.0, "no_answer"), ("19=20", 0.0, "wrong"), ("١٩", 0.0, "wrong")],
)  # fmt: skip
def test_reward(text: str, value: float, reason: str) -> None:
    score = Arithmetic().reward(Problem("3+5+9+2=", "3+5+9+2=", "19"), text)
    assert (score.value, score.reason) == (value, reason)


def test_demonstrations_are_imperfect_but_show_the_method() -> None:
    pairs = Arithmetic().demonstrations(seed=0, size=4000)
    assert not any(is_held_out(prompt) for prompt, _ in pairs)
    guesses = [(p, r) for p, r in pairs if "=" not in r]
    steps = [(p, r) for p, r in pairs if "=" in r]
    assert len(guesses) / len(pairs) == pytest.approx(GUESS_SHARE, abs=0.03)
    right = [int(r.rsplit("=", 1)[-1]) == total(p) for p, r in steps]
    assert 0.9 < sum(right) / len(right) < 1.0
    assert 0.05 < sum(int(r) == total(p) for p, r in guesses) / len(guesses) < 0.3


def test_a_demonstration_without_slips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gspo_cli.tasks.arithmetic.SLIP_SHARE", 0.0)
    assert demonstrate("3+5+9+2=", random.Random(0), guesses=0.0) == "8+9+2=17+2=19"


def test_the_share_of_guesses_is_a_key_of_the_task() -> None:
    pairs = make_task(TaskConfig(terms=(8, 11), guesses=0.15)).demonstrations(seed=0, size=2000)
    assert sum("=" not in response for _, response in pairs) / 2000 == pytest.approx(0.15, abs=0.03)


def test_longer_rows_have_their_lengths_and_fit_the_longest_answer() -> None:
    config = TaskConfig(terms=(8, 11))
    task = Arithmetic(config.terms)
    pairs = task.demonstrations(seed=0, size=400)
    lengths = {prompt.count("+") + 1 for prompt, _ in pairs}
    assert lengths == {8, 9, 10, 11}
    worked = [(p, r) for p, r in pairs if "=" in r]
    longest = max(len(r) + 1 for _, r in worked)  # with EOS
    assert 80 < longest <= config.longest_working == 120
    # a response slips as often as a usual one does: 0.02 in each of three steps
    right = [int(r.rsplit("=", 1)[-1]) == total(p) for p, r in worked]
    assert sum(right) / len(right) == pytest.approx(0.98**3, abs=0.05)
    assert not {p.id for p in task.problems("train")} & {p.id for p in task.problems("held_out")}
    assert Arithmetic().problems("train") == Arithmetic((3, 5)).problems("train")
