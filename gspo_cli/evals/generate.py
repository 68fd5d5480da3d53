"""From problems to answers, a portion at a time."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.evals.answers import Answer, Key
from gspo_cli.evals.settings import Settings
from gspo_cli.evals.subject import Subject
from gspo_cli.rollout.collect import decode
from gspo_cli.rollout.engine import generate_checked
from gspo_cli.seeds import derive_seed
from gspo_cli.types import Prompt

PORTION = 256
"""Most answers that one call of the engine draws and one part file holds: what a kill can cost."""
PORTION_TOKENS = 2**16
"""Most tokens, padding included, of a call to the built-in engine, about a minute's work; vLLM needs many answers at a
time."""


def portions(prompts: dict[str, Prompt], samples: int, max_new_tokens: int, engine: str) -> list[list[Key]]:
    """All keys, the samples of a problem together, cut into portions.

    The built-in engine pads prompts to the longest of a call, so it gets those of like length together. Nothing here
    changes between attempts: after a resume not even the last digit of a log-probability differs.
    """
    limit = PORTION_TOKENS
    if engine.startswith("vllm"):
        limit = sys.maxsize
    else:
        prompts = dict(sorted(prompts.items(), key=lambda item: len(item[1].token_ids)))
    found: list[list[Key]] = [[]]
    for problem, prompt in prompts.items():
        most = max(1, min(PORTION, limit // (len(prompt.token_ids) + max_new_tokens)))
        for sample in range(samples):
            if len(found[-1]) >= most:
                found.append([])
            found[-1].append((problem, sample))
    return found


def answer_seed(settings: Settings, benchmark: str, key: Key) -> int:
    """The seed of one answer: a function of the evaluation's seed and the answer's key alone."""
    return derive_seed(settings.seed, f"eval-{benchmark}", 0, *key)


def generate(
    subject: Subject, benchmark: str, prompts: dict[str, Prompt], settings: Settings, wanted: Iterable[list[Key]]
) -> Iterator[list[Answer]]:
    """The answers of each wanted portion, in the order of its keys.

    Errors: GspoError (exit code 5) when the engine fails, or drew with another seed than it was given.
    """
    engine = subject.engine
    for keys in wanted:
        seeds = {key: answer_seed(settings, benchmark, key) for key in keys}
        asked = [prompts[problem_id] for problem_id in dict.fromkeys(problem_id for problem_id, _ in keys)]
        drawn = generate_checked(engine, asked, settings.sampling, seeds, engine.weight_version)
        answers = []
        for key in keys:
            sample = drawn[key]
            if sample.seed != seeds[key]:
                raise GspoError(
                    f"the engine drew sample {key[1]} of {key[0]!r} with another seed",
                    f"{sample.seed} instead of {seeds[key]}: the answers could not be repeated",
                    "report this",
                    ExitCode.ENGINE,
                )
            answers.append(
                Answer(
                    problem_id=key[0], sample=key[1], seed=sample.seed, prompt_sha256=prompt_sha256(prompts[key[0]]),
                    text=decode(subject.tokenizer, sample), text_repaired=False,
                    n_tokens=len(sample.token_ids), finish_reason=sample.finish,
                )
            )  # fmt: skip
        yield answers


def prompt_sha256(prompt: Prompt) -> str:
    """Of the token ids as the engine gets them."""
    return hashlib.sha256(json.dumps(prompt.token_ids).encode()).hexdigest()
