"""One scored rollout batch without training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from gspo_cli.config import Recipe
from gspo_cli.models.load import load_policy
from gspo_cli.rollout.collect import PromptStream, collect
from gspo_cli.rollout.engines import open_engine
from gspo_cli.rollout.store import write_rollout
from gspo_cli.tasks import make_task
from gspo_cli.training.run_folder import rollout_metadata
from gspo_cli.types import RolloutBatch, Sampling


def sample_once(
    recipe: Recipe, start: Path, seed: int, target: Path, progress: Callable[[int, int], None]
) -> RolloutBatch:
    """Samples, scores and stores the batch that training with this recipe and seed would start with.

    `progress` is told (samples drawn, samples wanted), by the engines that can say.
    """
    model, tokenizer = load_policy(recipe.model, start)
    task = make_task(recipe.task)
    engine = open_engine(recipe.rollout, model, tokenizer, recipe.records_routes, progress)
    stream = PromptStream(task.problems(recipe.task.split), recipe.rollout.prompts, seed)
    with closing(engine):
        batch = collect(
            engine,
            tokenizer,
            task,
            stream.batch(1),
            recipe.rollout.samples,
            Sampling(recipe.rollout.temperature, recipe.rollout.max_new_tokens),
            seed_keys=(seed, "sample", 1),
            version=0,
        )
    write_rollout(batch, target, rollout_metadata(model, tokenizer, recipe))
    return batch
