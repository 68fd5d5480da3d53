"""The built-in task: add a row of digits, one step at a time.

`3+5+9+2=` is answered `8+9+2=17+2=19`: each step adds the first two terms and rewrites the rest, and the answer is
what stands after the last `=`. The problems are all rows of `MIN_TERMS..MAX_TERMS` digits; a hash of the text puts
about a tenth of them into the held-out split, whatever the seed.

The cold-start demonstrations are imperfect on purpose: some guess at once, some steps carry a slip. A model taught by
them knows the method without preferring it, which leaves reinforcement something to find.
"""

import hashlib
import random

from gspo_cli.seeds import derive_seed
from gspo_cli.types import Problem, Score

MIN_TERMS, MAX_TERMS = 3, 5
NUM_TRAIN, NUM_HELD_OUT = 20_000, 200
GUESS_SHARE = 0.6  # of demonstrations: answer at once, without a step
GUESS_SPREAD = 3  # a guess is off by up to this much, either way
SLIP_SHARE = 0.02  # of steps: the sum is off by one


class Arithmetic:
    """Sums of digits with a reward of 1 for the right total and 0 for anything else."""

    def problems(self, split: str) -> list[Problem]:
        """`train` (20,000 problems) or `held_out` (200), always the same ones in the same order."""
        size = NUM_HELD_OUT if split == "held_out" else NUM_TRAIN
        rng = random.Random(derive_seed(0, "arithmetic", split))
        found: dict[str, Problem] = {}
        while len(found) < size:
            terms = [rng.randint(1, 9) for _ in range(rng.randint(MIN_TERMS, MAX_TERMS))]
            text = "+".join(map(str, terms)) + "="
            if is_held_out(text) == (split == "held_out"):
                found.setdefault(text, Problem(id=text, prompt=text, answer=str(sum(terms))))
        return list(found.values())

    def reward(self, problem: Problem, text: str) -> Score:
        """1 if the text after the last `=` (or all of it) is exactly the total."""
        answer = text.rsplit("=", 1)[-1]
        if not answer.isdecimal():
            return Score(0.0, "no_answer")
        return Score(1.0, "correct") if answer == problem.answer else Score(0.0, "wrong")

    def demonstrations(self, seed: int, size: int) -> list[tuple[str, str]]:
        """`size` pairs of prompt and imperfect response from the training split."""
        rng = random.Random(derive_seed(seed, "demonstrations"))
        problems = self.problems("train")
        return [(p.prompt, demonstrate(p.prompt, rng)) for p in rng.choices(problems, k=size)]


def is_held_out(text: str) -> bool:
    """Whether a problem belongs to the held-out split; the split depends on the text alone."""
    return hashlib.sha256(text.encode()).digest()[0] < 26


def demonstrate(prompt: str, rng: random.Random) -> str:
    """One response: a guess near the total, or the steps with an occasional slip."""
    terms = [int(t) for t in prompt.rstrip("=").split("+")]
    if rng.random() < GUESS_SHARE:
        return str(max(0, sum(terms) + rng.randint(-GUESS_SPREAD, GUESS_SPREAD)))
    steps = []
    while len(terms) > 1:
        slip = rng.choice((-1, 1)) if rng.random() < SLIP_SHARE else 0
        terms = [terms[0] + terms[1] + slip, *terms[2:]]
        steps.append("+".join(map(str, terms)))
    return "=".join(steps)
