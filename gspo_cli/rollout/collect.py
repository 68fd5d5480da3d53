"""From problems to scored groups: the first half of a rollout batch."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gspo_cli.errors import GspoError
from gspo_cli.rollout.engine import Engine, SampleKey, generate_checked
from gspo_cli.seeds import derive_seed, permutation
from gspo_cli.tasks.contract import Batched, Crediting, Task
from gspo_cli.types import Group, Problem, Prompt, RolloutBatch, Sample, Sampling, Score

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PromptStream:
    """The order in which problems are consumed: a permutation for each epoch, from the run's seed alone.

    A batch never crosses an epoch's end (the remainder waits for another epoch's order), so no problem stands in it
    twice.
    """

    problems: list[Problem]
    prompts: int
    seed: int

    def __post_init__(self) -> None:
        if len(self.problems) < self.prompts:
            raise GspoError(
                f"{len(self.problems)} problems, but a rollout batch takes {self.prompts}",
                "a problem stands in a batch once",
                "lower rollout.prompts or give more data",
            )

    def batch(self, step: int) -> list[Problem]:
        """The problems of rollout batch `step` (from 1)."""
        epoch, position = divmod(step - 1, len(self.problems) // self.prompts)
        order = permutation(len(self.problems), derive_seed(self.seed, "data", epoch))
        return [self.problems[i] for i in order[position * self.prompts : (position + 1) * self.prompts]]


def encode(tokenizer: PreTrainedTokenizerBase, problem: Problem) -> Prompt:
    """The prompt's token ids, through the tokenizer's chat template where it has one."""
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": problem.prompt}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    else:
        ids = tokenizer(problem.prompt)["input_ids"]
    if not ids:
        raise GspoError(f"problem {problem.id!r} has an empty prompt", "it gives no tokens", "remove it from the data")
    return Prompt(problem.id, tuple(ids))


def decode(tokenizer: PreTrainedTokenizerBase, sample: Sample) -> str:
    """A response as text, for scoring: without special tokens, so without its EOS."""
    return str(tokenizer.decode(list(sample.token_ids), skip_special_tokens=True))


def collect(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    problems: list[Problem],
    num_samples: int,
    sampling: Sampling,
    seed_keys: tuple[int, str, int],
    version: int,
) -> RolloutBatch:
    """Samples and scores `num_samples` responses to each problem.

    `seed_keys` = (run seed, stream, step): each sample's seed is derived from them, its problem and its index, so it
    does not depend on what else is sampled.
    """
    run_seed, stream, step = seed_keys
    seeds: dict[SampleKey, int] = {
        (p.id, i): derive_seed(run_seed, stream, step, p.id, i) for p in problems for i in range(num_samples)
    }
    prompts = {p.id: encode(tokenizer, p) for p in problems}
    drawn = generate_checked(engine, list(prompts.values()), sampling, seeds, version)
    groups = []
    texts_of = {p.id: tuple(decode(tokenizer, drawn[p.id, i]) for i in range(num_samples)) for p in problems}
    found = iter(score(task, [(p, text) for p in problems for text in texts_of[p.id]]))
    for problem in problems:
        samples = tuple(drawn[problem.id, i] for i in range(num_samples))
        texts = texts_of[problem.id]
        scores = tuple(itertools.islice(found, num_samples))
        groups.append(
            Group(problem, prompts[problem.id], samples, texts, scores, credit(task, tokenizer, problem, samples))
        )
    return RolloutBatch(step, tuple(groups), sampling.max_new_tokens)


def score(task: Task, responses: list[tuple[Problem, str]]) -> list[Score]:
    """The rewards of many responses, all at once where the task can; none, with the reason, where the task fails or
    gives a number that is not finite: such a response is left out of means and updates, not counted as wrong."""
    given = task.rewards(responses) if isinstance(task, Batched) else [score_one(task, *pair) for pair in responses]
    return [s if s.value is None or math.isfinite(s.value) else Score(None, f"the reward was {s.value}") for s in given]


def score_one(task: Task, problem: Problem, text: str) -> Score:
    """The task's score of one response."""
    try:
        return task.reward(problem, text)
    except GspoError:
        raise
    except Exception as error:  # whatever a task of the user's own raises
        return Score(None, f"the task failed: {type(error).__name__}: {str(error)[:200]}")


def credit(
    task: Task, tokenizer: PreTrainedTokenizerBase, problem: Problem, samples: tuple[Sample, ...]
) -> tuple[tuple[float, ...], ...] | None:
    """A factor for each response token from a task that assigns credit; None from any other.

    Errors: GspoError when the task does not give one factor a token.
    """
    if not isinstance(task, Crediting):
        return None
    factors = []
    for sample in samples:
        pieces = [str(tokenizer.decode([t])) for t in sample.token_ids]
        given = tuple(float(c) for c in task.token_credits(problem, pieces))
        if len(given) != len(pieces):
            raise GspoError(
                f"token_credits gave {len(given)} factors for {len(pieces)} tokens",
                "each response token needs one factor on its advantage",
                "mend the task's token_credits",
            )
        factors.append(given)
    return tuple(factors)


def problems_hash(problems: list[Problem]) -> str:
    """sha256 over the problems in their order."""
    text = json.dumps([[p.id, p.prompt, p.answer] for p in problems])
    return hashlib.sha256(text.encode()).hexdigest()
