"""Sample the rollout batch to train on next, and later ones ahead of it (`max_lag`); keep the queue in checkpoints.

A server samples the later ones while this process trains. They are the batches that would have been sampled before the
training, as the server gets new weights only after both.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

from gspo_cli.config import Recipe
from gspo_cli.rollout.collect import collect, requests
from gspo_cli.rollout.engine import OverlappingEngine, full_distribution, overlaps
from gspo_cli.rollout.store import read_rollout, write_rollout
from gspo_cli.training.session import Session
from gspo_cli.types import Group, RolloutBatch

MAX_ROUNDS = 10
"""Of dynamic sampling, for one rollout batch."""


def sample_batches(session: Session, numbers: range, version: int) -> tuple[list[RolloutBatch], int]:
    """Samples these rollout batches, all with the weights of that version.

    Returns the batches, and `Session.prompt_batches` after them; the session itself is unchanged, as the caller may
    abandon the work.
    """
    sampled, prompt_batches = list[RolloutBatch](), session.prompt_batches
    for number in numbers:
        batch, prompt_batches = sample_batch(session, number, version, prompt_batches)
        sampled.append(batch)
    return sampled, prompt_batches


def steps_to_sample(step: int, num_queued: int, recipe: Recipe) -> tuple[range, range]:
    """The rollout batches to sample before training on `step`, and during it; none beyond the last one of the run."""
    due = range(step + num_queued, min(step + recipe.rollout.max_lag, recipe.train.steps) + 1)
    now = len(due) if not overlaps(recipe.rollout) else 0 if num_queued else 1
    return due[:now], due[now:]


def begin_sampling(session: Session, numbers: range, prompt_batches: int) -> None:
    """Has the server sample these batches while this process does something else; `sample_batches` takes the samples.

    With dynamic sampling only the first round of the first batch: what follows depends on its rewards.
    """
    recipe, engine = session.run.recipe, cast(OverlappingEngine, session.engine)
    for ahead, number in enumerate(numbers[:1] if recipe.algo.dynamic_sampling else numbers, 1):
        problems = session.stream.batch(prompt_batches + ahead)
        seed_keys = (recipe.seed, "sample", number)
        prompts, seeds = requests(session.tokenizer, problems, recipe.rollout.samples, seed_keys, recipe.task)
        engine.begin(list(prompts.values()), full_distribution(recipe.rollout), seeds)


def sample_batch(session: Session, step: int, version: int, prompt_batches: int) -> tuple[RolloutBatch, int]:
    """Samples and scores the responses of one rollout batch with the weights of that version.

    Dynamic sampling puts groups without spread aside and samples further prompts until the batch is full
    (arXiv 2503.14476, Eq. 11), for at most `MAX_ROUNDS` rounds; groups put aside fill what is missing then.
    """
    recipe, kept, dropped = session.run.recipe, list[Group](), list[Group]()
    for sampling_round in range(MAX_ROUNDS):
        # a problem may come again in a later round, where an epoch ends, and must not get the same responses
        stream = f"sample {sampling_round}" if sampling_round else "sample"
        prompt_batches += 1
        batch = collect(
            session.engine, session.tokenizer, session.task, session.stream.batch(prompt_batches),
            recipe.rollout.samples, full_distribution(recipe.rollout), seed_keys=(recipe.seed, stream, step),
            version=version, config=recipe.task, stops=recipe.rollout.stop, timed=session.clock,
        )  # fmt: skip
        if not recipe.algo.dynamic_sampling:
            return batch, prompt_batches
        for group in batch.groups:
            (kept if has_spread(group) else dropped).append(group)
        if len(kept) >= recipe.rollout.prompts:
            break
    full, spare = kept[: recipe.rollout.prompts], kept[recipe.rollout.prompts :]
    missing = recipe.rollout.prompts - len(full)
    groups, unused = tuple(full + dropped[:missing]), tuple(spare + dropped[missing:])
    return replace(batch, groups=groups, dropped=unused), prompt_batches


def has_spread(group: Group) -> bool:
    """Whether the group's scored responses got different rewards."""
    return len({score.value for score in group.scores if score.value is not None}) > 1


def save_queue(batches: Iterable[RolloutBatch], checkpoint: Path) -> None:
    """Writes each batch into a file of a checkpoint, and the groups that dynamic sampling put aside into another."""
    for batch in batches:
        (checkpoint / "ahead").mkdir(exist_ok=True)
        metadata = {"max_new_tokens": str(batch.max_new_tokens)}
        write_rollout(batch, queue_file(checkpoint, batch.step), metadata)
        if batch.dropped:
            aside = replace(batch, groups=batch.dropped, dropped=())
            write_rollout(aside, queue_file(checkpoint, batch.step, ".dropped"), metadata)


def load_queue(checkpoint: Path, step: int, num_queued: int) -> list[RolloutBatch]:
    """The batches queued after batch `step`. Errors: OSError, KeyError or ValueError for a missing or damaged file."""
    queue = []
    for number in range(step + 1, step + 1 + num_queued):
        aside = queue_file(checkpoint, number, ".dropped")
        dropped = read_rollout(aside).groups if aside.exists() else ()
        queue.append(replace(read_rollout(queue_file(checkpoint, number)), dropped=dropped))
    return queue


def queue_file(checkpoint: Path, step: int, suffix: str = "") -> Path:
    """The file of a queued batch."""
    return checkpoint / "ahead" / f"step_{step:06d}{suffix}.parquet"
