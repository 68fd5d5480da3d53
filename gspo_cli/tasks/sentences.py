"""Three tasks in plain words for a small chat model: sums, comparisons and stories, answered in one sentence.

The problems are drawn with a fixed seed, and a hash of its text puts about a tenth of them into the held-out split, as
in task `arithmetic`.
"""

import random
import re
from collections.abc import Callable

from gspo_cli.tasks.arithmetic import OneAnswer, is_held_out
from gspo_cli.types import Problem

NUM_TRAIN, NUM_HELD_OUT = 2_000, 200
ASK = " Answer in one short sentence."
NAMES = ["Tom", "Anna", "Ben", "Lily", "Sam", "Mia", "Jack", "Emma", "Leo", "Zoe"]
THINGS = ["apples", "books", "coins", "shells", "stamps", "pencils", "cards", "marbles"]
GAINS = ("finds {} more", "buys {} more", "gets {} more from a friend")
LOSSES = ("gives away {}", "loses {}", "sells {}")


def draw_sum(rng: random.Random) -> tuple[str, str]:
    """Two things of one kind on two days, to be added."""
    name, thing, first, second = rng.choice(NAMES), rng.choice(THINGS), rng.randint(1, 9), rng.randint(1, 9)
    text = f"{name} finds {first} {thing} on Monday and {second} {thing} on Tuesday. How many {thing} is that?"
    return text, str(first + second)


def draw_comparison(rng: random.Random) -> tuple[str, str]:
    """Two people have different numbers of the same thing; the answer is who has more."""
    (one, other), thing = rng.sample(NAMES, k=2), rng.choice(THINGS)
    first, second = rng.sample(range(1, 100), k=2)
    text = f"{one} has {first} {thing}. {other} has {second} {thing}. Who has more {thing}?"
    return text, one if first > second else other


def draw_story(rng: random.Random) -> tuple[str, str]:
    """A story of one step: somebody gains or loses some things."""
    name, thing, start = rng.choice(NAMES), rng.choice(THINGS), rng.randint(3, 12)
    gains = rng.random() < 0.5
    change = rng.randint(1, 9) if gains else rng.randint(1, start - 1)
    event = rng.choice(GAINS if gains else LOSSES).format(change)
    text = f"{name} has {start} {thing} and {event}. How many {thing} does {name} have now?"
    return text, str(start + change if gains else start - change)


class Sentences(OneAnswer):
    """Questions with a short answer, to be given in a sentence."""

    draw: Callable[[random.Random], tuple[str, str]]
    found_by = "last_number"

    def find(self, text: str) -> str | None:
        """The last run of digits, with a decimal part if it has one: `27.0` is not the answer `0`."""
        numbers = re.findall(r"[0-9]+(?:[.,][0-9]+)*", text)
        return numbers[-1] if numbers else None

    def problems(self, split: str) -> list[Problem]:
        """`train` (2,000 problems) or `held_out` (200), all different, always the same ones in the same order."""
        wanted = NUM_HELD_OUT if split == "held_out" else NUM_TRAIN
        rng, found = random.Random(f"{type(self).__name__} {split}"), dict[str, Problem]()
        while len(found) < wanted:
            text, answer = type(self).draw(rng)
            if is_held_out(text) == (split == "held_out"):
                found.setdefault(text, Problem(text, text + ASK, answer))
        return list(found.values())


class Sums(Sentences):
    """`Tom finds 3 apples on Monday and 5 apples on Tuesday. How many apples is that?`"""

    draw = staticmethod(draw_sum)


class Comparisons(Sentences):
    """`Tom has 7 apples. Anna has 52 apples. Who has more apples?`"""

    draw, found_by = staticmethod(draw_comparison), "first_name"

    def find(self, text: str) -> str | None:
        """The name that a response gives first: `Anna has more apples than Tom.`"""
        found = re.search(rf"\b(?:{'|'.join(NAMES)})\b", text)
        return found and found[0]


class Stories(Sentences):
    """`Tom has 7 apples and finds 5 more. How many apples does Tom have now?`"""

    draw = staticmethod(draw_story)
