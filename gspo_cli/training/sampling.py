"""What is sampled before the training on a rollout batch: its own prompts, later ones ahead, more where groups have no
spread."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gspo_cli.rollout.collect import collect
from gspo_cli.training.ahead import due
from gspo_cli.types import Group, RolloutBatch, Sampling

if TYPE_CHECKING:
    from gspo_cli.training.loop import Session

MAX_ROUNDS = 10


def sample_due(session: Session, step: int) -> tuple[list[RolloutBatch], int]:
    """What is due before the training on this batch, all sampled with the weights as they are; and the portions of the
    prompt stream consumed then.

    That is this batch alone, unless `rollout.max_lag` has later ones sampled ahead.
    """
    sampled, portions = list[RolloutBatch](), session.chunks
    for number in due(step, len(session.ahead), session.run.recipe):
        batch, portions = sample_batch(session, number, step - 1, portions)
        sampled.append(batch)
    return sampled, portions


def sample_batch(session: Session, step: int, version: int, chunks: int) -> tuple[RolloutBatch, int]:
    """Samples and scores the prompts of this step with the weights of that version; and the portions of the prompt
    stream consumed then, `chunks` before.

    With dynamic sampling, groups without spread are put aside and further prompts sampled until the batch is full
    (arXiv 2503.14476, Eq. 11), for at most `MAX_ROUNDS` rounds; what is there then is trained on.
    """
    recipe, kept, dropped = session.run.recipe, list[Group](), list[Group]()
    rounds = MAX_ROUNDS if recipe.algo.dynamic_sampling else 1
    for _ in range(rounds):
        chunks += 1
        batch = collect(
            session.engine,
            session.tokenizer,
            session.task,
            session.stream.batch(chunks),
            recipe.rollout.samples,
            Sampling(recipe.rollout.temperature, recipe.rollout.max_new_tokens),
            seed_keys=(recipe.seed, "sample", step),
            version=version,
        )
        if rounds == 1:
            break
        for group in batch.groups:
            (kept if has_spread(group) else dropped).append(group)
        if len(kept) >= recipe.rollout.prompts:
            break
    if rounds == 1:
        return batch, chunks
    full, spare = kept[: recipe.rollout.prompts], kept[recipe.rollout.prompts :]
    missing = recipe.rollout.prompts - len(full)
    return replace(batch, groups=tuple(full + dropped[:missing]), dropped=tuple(spare + dropped[missing:])), chunks


def has_spread(group: Group) -> bool:
    """Whether the group's scored responses got different rewards."""
    return len({score.value for score in group.scores if score.value is not None}) > 1
