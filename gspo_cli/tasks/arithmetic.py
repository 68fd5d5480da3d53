"""The built-in task: add a row of digits, one step at a time.

`3+5+9+2=` is answered `8+9+2=17+2=19`: each step adds the first two terms and rewrites the rest, and the answer is
what stands after the last `=`. The problems are all rows of `MIN_TERMS..MAX_TERMS` digits, or of the lengths in
`task.terms`; a hash of the text puts about a tenth of them into the held-out split, whatever the seed.

The cold-start demonstrations are imperfect on purpose: some guess at once, some steps carry a slip. A model taught by
them knows the method without preferring it, which leaves reinforcement something to find.
"""

import hashlib
import random
from functools import cache

from gspo_cli.seeds import derive_seed
from gspo_cli.types import Problem, Score, visible

MIN_TERMS, MAX_TERMS = 3, 5
NUM_TRAIN, NUM_HELD_OUT = 20_000, 200
GUESS_SHARE = 0.6  # of demonstrations, unless `task.guesses` says otherwise: answer at once, without a step
GUESS_SPREAD = 3  # a guess is off by up to this much, either way
SLIP_SHARE = 0.02  # of steps: the sum is off by one
USUAL_STEPS = 3  # of the usual rows: longer ones slip as often per response, not per step


class OneAnswer:
    """A task with a reward of 1 for exactly the reference answer, wherever a response says it, and 0 for another."""

    found_by: str
    """Names how the answer is found, in tables of graded answers."""

    def problems(self, split: str) -> list[Problem]:
        raise NotImplementedError

    def find(self, text: str) -> str | None:
        """The answer in a response; None if it says nothing."""
        raise NotImplementedError

    def reward(self, problem: Problem, text: str) -> Score:
        found = self.find(visible(text) or "")
        if found is None:
            return Score(0.0, "no_answer")
        return Score(1.0, "correct") if found == problem.answer else Score(0.0, "wrong")


class Arithmetic(OneAnswer):
    """Sums of digits, for the right total.

    `terms` = fewest and most digits of a row; None = the usual 3 to 5. `guesses` = share of demonstrations that guess.
    """

    found_by = "last ="

    def __init__(self, terms: tuple[int, int] | None = None, guesses: float = GUESS_SHARE) -> None:
        self.terms, self.guesses = terms, guesses

    def problems(self, split: str) -> list[Problem]:
        """`train` (20,000 problems) or `held_out` (200), always the same ones in the same order."""
        return list(draw_problems(split == "held_out", self.terms))

    def find(self, text: str) -> str | None:
        """The number after the last `=`, or the whole text."""
        answer = text.rsplit("=", 1)[-1]
        return answer if answer.isdecimal() else None

    def demonstrations(self, seed: int, size: int) -> list[tuple[str, str]]:
        """`size` pairs of prompt and imperfect response from the training split."""
        rng = random.Random(derive_seed(seed, "demonstrations"))
        problems = self.problems("train")
        long = self.terms is not None
        return [(p.prompt, demonstrate(p.prompt, rng, long, self.guesses)) for p in rng.choices(problems, k=size)]


@cache  # every run of a study wants the same ones
def draw_problems(held_out: bool, lengths: tuple[int, int] | None = None) -> tuple[Problem, ...]:
    """The problems of one split, all different; as many as usual, or all if the rows are that short."""
    rng = random.Random(derive_seed(0, "arithmetic", "held_out" if held_out else "train"))
    found: dict[str, Problem] = {}
    fewest, most = lengths or (MIN_TERMS, MAX_TERMS)
    while len(found) < (NUM_HELD_OUT if held_out else NUM_TRAIN):
        terms = [rng.randint(1, 9) for _ in range(rng.randint(fewest, most))]
        text = "+".join(map(str, terms)) + "="
        if is_held_out(text) == held_out:
            found.setdefault(text, Problem(id=text, prompt=text, answer=str(sum(terms))))
    return tuple(found.values())


def is_held_out(text: str) -> bool:
    """Whether a problem belongs to the held-out split; the split depends on the text alone."""
    return hashlib.sha256(text.encode()).digest()[0] < 26


def demonstrate(prompt: str, rng: random.Random, long: bool = False, guesses: float = GUESS_SHARE) -> str:
    """One response: a guess near the total, or the steps with an occasional slip.

    `long`: a worked response slips as often as a usual one, however many steps it has; else no one would learn from
    rows of twenty digits that working pays.
    """
    terms = [int(t) for t in prompt.rstrip("=").split("+")]
    if rng.random() < guesses:
        return str(max(0, sum(terms) + rng.randint(-GUESS_SPREAD, GUESS_SPREAD)))
    steps = []
    share = SLIP_SHARE * USUAL_STEPS / (len(terms) - 1) if long else SLIP_SHARE
    while len(terms) > 1:
        slip = rng.choice((-1, 1)) if rng.random() < share else 0
        terms = [terms[0] + terms[1] + slip, *terms[2:]]
        steps.append("+".join(map(str, terms)))
    return "=".join(steps)
