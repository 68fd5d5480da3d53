"""From problems to scored groups: the first half of a rollout batch."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from gspo_cli.config import TaskConfig
from gspo_cli.errors import GspoError
from gspo_cli.rollout.engine import Engine, SampleKey, generate_checked
from gspo_cli.rollout.prompts import cut_at_stop, decode, encode, opened_thinking, pieces
from gspo_cli.seeds import derive_seed, permutation
from gspo_cli.tasks import Crediting, Task
from gspo_cli.tasks.rewards import own_code
from gspo_cli.tasks.scoring import score
from gspo_cli.types import Group, Problem, Prompt, Response, RolloutBatch, Sample, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PromptStream:
    """The order in which problems are used: one permutation per epoch, which depends only on the run's seed.

    A batch never crosses the end of an epoch (leftover problems wait for the next order), so it holds no problem twice.
    """

    problems: list[Problem]
    prompts: int
    seed: int

    def __post_init__(self) -> None:
        if len(self.problems) < self.prompts:
            raise GspoError(
                f"{len(self.problems)} problems, but a rollout batch takes {self.prompts}",
                "a batch holds each problem at most once",
                "lower rollout.prompts or give more data",
            )

    def batch(self, step: int) -> list[Problem]:
        """The problems of rollout batch `step` (from 1)."""
        epoch, position = divmod(step - 1, len(self.problems) // self.prompts)
        order = permutation(len(self.problems), derive_seed(self.seed, "data", epoch))
        return [self.problems[i] for i in order[position * self.prompts : (position + 1) * self.prompts]]


def collect(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    problems: list[Problem],
    num_samples: int,
    sampling: Sampling,
    seed_keys: tuple[int, str, int],
    version: int,
    config: TaskConfig,
    stops: tuple[str, ...],
    timed: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> RolloutBatch:
    """Samples and scores `num_samples` responses to each problem.

    `seed_keys` = (run seed, stream, step). A sample's seed derives from them, its problem and its index, so it does not
    depend on what else is sampled. `config` says how prompts are written; a response ends at one of `stops`, if any.
    `timed` measures the phase `score_s`.
    """
    prompts, seeds = requests(tokenizer, problems, num_samples, seed_keys, config)
    by_key = generate_checked(engine, list(prompts.values()), sampling, seeds, version)
    drawn: list[tuple[Problem, tuple[Sample, ...], tuple[Response, ...]]] = []
    for problem in problems:
        samples = tuple(by_key[problem.id, i] for i in range(num_samples))
        if stops:
            size = len(prompts[problem.id].token_ids)
            samples = tuple(cut_at_stop(tokenizer, sample, stops, size) for sample in samples)
        texts = tuple(Response(decode(tokenizer, s), len(s.token_ids), s.finish) for s in samples)
        drawn.append((problem, samples, texts))
    deadline = config.deadline_s if own_code(config) else None  # the graders here have deadlines of their own
    with timed("score_s"):
        seen: list[tuple[Problem, str]] = [
            (problem, Response(opened_thinking(tokenizer, prompts[problem.id]) + text, text.num_tokens, text.finish))
            for problem, _, texts in drawn for text in texts
        ]  # fmt: skip
        scores = iter(score(task, seen, deadline))
    groups = []
    for problem, samples, texts in drawn:
        its_scores, credits = tuple(itertools.islice(scores, num_samples)), credit(task, tokenizer, problem, samples)
        groups.append(Group(problem, prompts[problem.id], samples, texts, its_scores, credits))
    return RolloutBatch(seed_keys[2], tuple(groups), sampling.max_new_tokens)


def requests(
    tokenizer: PreTrainedTokenizerBase,
    problems: list[Problem],
    num_samples: int,
    seed_keys: tuple[int, str, int],
    config: TaskConfig,
) -> tuple[dict[str, Prompt], dict[SampleKey, int]]:
    """What `collect` asks the engine for: the prompts by problem, and each sample's seed."""
    run_seed, stream, step = seed_keys
    seeds = {(p.id, i): derive_seed(run_seed, stream, step, p.id, i) for p in problems for i in range(num_samples)}
    return {p.id: encode(tokenizer, p, config) for p in problems}, seeds


def credit(
    task: Task, tokenizer: PreTrainedTokenizerBase, problem: Problem, samples: tuple[Sample, ...]
) -> tuple[tuple[float, ...], ...] | None:
    """A factor for each response token, from a task that assigns credit; None for any other task.

    Errors: GspoError when the task does not give one finite number per token.
    """
    if not isinstance(task, Crediting):
        return None
    credits = []
    for sample in samples:
        tokens = pieces(tokenizer, sample.token_ids)
        factors = tuple(task.token_credits(problem, tokens))
        numbers = all(isinstance(factor, int | float) and isfinite(factor) for factor in factors)
        if len(factors) != len(tokens) or not numbers:
            raise GspoError(
                f"token_credits gave {len(factors)} factors for {len(tokens)} tokens: {factors!s:.80}",
                "each response token needs one finite number, the factor for its advantage",
                "correct the task's token_credits",
            )
        credits.append(tuple(map(float, factors)))
    return tuple(credits)


def problems_hash(problems: Sequence[Problem]) -> str:
    """sha256 over the problems in their order."""
    rows = [[p.id, p.prompt, p.answer, *filter(None, (p.columns, p.messages))] for p in problems]
    text = json.dumps(rows, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
