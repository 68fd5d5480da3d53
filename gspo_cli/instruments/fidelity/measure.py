"""One seed of `gspo report fidelity`: draw, update, and hold every arm's gradient against fresh on-policy ones."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, product

import torch

from gspo_cli.config import NoiseConfig
from gspo_cli.instruments.fidelity.estimates import Fidelity, Signal, fidelity, signal
from gspo_cli.instruments.fidelity.gradients import Arm, Compressor, estimates, mini_batches_of, prepare
from gspo_cli.training.step.noise import RecordedNoise
from gspo_cli.training.step.update import Learner, record_old_policy, update
from gspo_cli.training.study.arms import Run
from gspo_cli.types import RolloutBatch

Source = Callable[[int, int], RolloutBatch]
"""(number from 1, version of the model's present weights) -> the batch of that number, sampled with these weights."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one seed measures."""

    updates: tuple[int, ...]
    """Numbers of optimizer steps between sampling and the gradient."""
    noises: tuple[float, ...]
    """Standard deviations in nats of the noise per token on the old log-probabilities."""
    batches: int
    """Batches drawn before the updates."""
    reference: int
    """Fresh batches of the reference, at each number of updates."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm at one number of updates and one noise, of one seed."""

    arm: str
    updates: int
    noise: float
    seed: int
    fidelity: Fidelity
    ceiling: float | None
    """Cosine of a fresh on-policy batch of the same size to the same reference."""
    on_policy_variance: float | None
    """Variance of a fresh on-policy batch's gradient, over |mu|^2."""
    effective: float | None
    clipped: float | None


Progress = Callable[[str], None]


def measure_seed(
    arms: Sequence[Arm], updater: Run, learner: Learner, source: Source, plan: Plan, progress: Progress
) -> list[Cell]:
    """All cells of one seed. The model starts and ends with its present weights.

    `updater` and `learner` make the updates, on batches of their own, exactly as training would: each batch is split
    into the recipe's mini-batches, and a new one is drawn from the updated policy when they are used up.
    """
    model, seed = learner.model, updater.recipe.seed
    start = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        numbers = count(1)
        prepared = [
            # noise of one nat per token, to be scaled
            prepare(source(number, 0), arms, RecordedNoise(seed, number, NoiseConfig(token=1.0)))
            for number in islice(numbers, plan.batches)
        ]
        fresh = list(islice(numbers, plan.reference))  # the same prompts after every number of updates
        steps, done = make_updates(updater, learner, source, numbers), 0
        compressor, cells = Compressor(model), list[Cell]()
        for updates in sorted(set(plan.updates)):
            while done < updates:
                done = next(steps)
            progress(f"seed {seed}, {updates} updates: reference")
            references = reference(arms, source, fresh, updates, compressor)
            progress(f"seed {seed}, {updates} updates: {len(arms)} arms at {len(plan.noises)} noises")
            found = [estimates(batch, plan.noises, compressor) for batch in prepared]
            for arm, sigma in product(arms, plan.noises):
                mine, known = [one[arm.name, sigma] for one in found], references[arm.name]
                measured = fidelity(torch.stack([m.gradient_D for m in mine]), known)
                cells.append(
                    Cell(
                        arm.name, updates, sigma, seed, measured, known.ceiling,
                        known.variance / known.squared_norm if known.resolved else None,
                        _mean([m.effective for m in mine]), _mean([m.clipped for m in mine]),
                    )
                )  # fmt: skip
        return cells
    finally:
        model.load_state_dict(start)


def reference(
    arms: Sequence[Arm], source: Source, numbers: Sequence[int], version: int, compressor: Compressor
) -> dict[str, Signal]:
    """Each arm's own on-policy gradient at the present weights: without updates and noise since the batch was drawn.

    Arms whose objectives agree on policy have the same one; `dapo`, `dr_grpo`, `luspo` and others that weigh responses
    otherwise have one of their own, so that what is measured is the data's age, not the objective.
    """
    found: dict[str, list[torch.Tensor]] = {arm.name: [] for arm in arms}
    for number in numbers:
        ready = prepare(source(number, version), arms, None)
        for (name, _), estimate in estimates(ready, (0.0,), compressor).items():
            found[name].append(estimate.gradient_D)
    return {name: signal(torch.stack(gradients)) for name, gradients in found.items()}


def make_updates(run: Run, learner: Learner, source: Source, numbers: Iterator[int]) -> Iterator[int]:
    """Makes one optimizer step at a time; yields how many are done."""
    recipe, done = run.recipe, 0
    lr = recipe.algo.lr or recipe.train.lr
    while True:
        batch = source(next(numbers), done)
        mini_batches = mini_batches_of(batch, Arm(run, learner), recipe.minibatches)
        record_old_policy(learner, mini_batches)
        for index, mini_batch in enumerate(mini_batches):
            update(learner, mini_batch, lr, first=index == 0)
            done += 1
            yield done


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
