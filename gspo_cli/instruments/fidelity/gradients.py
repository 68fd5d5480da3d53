"""The gradients that training would compute on a rollout batch, for many arms and noises from shared forward passes.

B = responses, T = token positions, D = numbers kept of a gradient
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gspo_cli.algorithms.metrics import weight_metrics
from gspo_cli.instruments.batch.gradients import Sketch, trained
from gspo_cli.models.admission import paths_of
from gspo_cli.moe.hooks import tapped
from gspo_cli.moe.replay import natural_routes, record_to_replay, routed
from gspo_cli.training.step.batches import Batching, advantages_of, make_mini_batches
from gspo_cli.training.step.metrics import Accumulator
from gspo_cli.training.step.noise import RecordedNoise
from gspo_cli.training.step.update import Learner, at_ratio_one, global_denominator, objective, scored, skipped_rows
from gspo_cli.training.study.arms import Run
from gspo_cli.types import MicroBatch, MiniBatch, RolloutBatch

EXACT = 1 << 19
"""Parameters up to which gradients are kept whole; beyond, as sketches of `batch.gradients.SKETCH` numbers."""


@dataclass(frozen=True)
class Arm:
    """An arm of the recipe with its learner; all learners share one model."""

    run: Run
    learner: Learner

    @property
    def name(self) -> str:
        return self.run.arm


def passes(arm: Arm, mini_batch: MiniBatch) -> tuple[Any, ...]:
    """Arms with the same key make the same forward passes: over the same rows, with the same routes."""
    algo = arm.run.recipe.algo
    return algo.replay, algo.old_log_probs, *(m.input_ids_BT.cpu().numpy().tobytes() for m in mini_batch.micro_batches)


Prepared = list[tuple[Arm, MiniBatch]]
"""A rollout batch as one mini-batch for each arm, with the old policy's values. Arms with the same `passes` share
rows and old policy."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One arm's gradient of a batch."""

    gradient_D: Tensor
    """dJ/dtheta, whole or as a sketch; float32 on the CPU."""
    effective: float | None
    """Effective share of the tokens that have an advantage (`weight/effective_frac`)."""
    clipped: float | None
    """Share of loss tokens that the clip leaves without a gradient; None without a hard clip."""


class Compressor:
    """Keeps gradients of small models whole and those of larger ones as sketches, which keep inner products."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.parameters = trained(model)
        self.sketch = Sketch(model) if sum(p.numel() for p in self.parameters) > EXACT else None

    def zero(self) -> Tensor:
        """The gradient of nothing."""
        return self.of([torch.zeros_like(p) for p in self.parameters])

    def of(self, parts: Sequence[Tensor]) -> Tensor:
        """A gradient given as one tensor a parameter."""
        if self.sketch is not None:
            return self.sketch.of(parts).float()
        return torch.cat([part.flatten() for part in parts]).float().cpu()


def prepare(batch: RolloutBatch, arms: Sequence[Arm], noise: RecordedNoise | None) -> Prepared:
    """Rows, advantages and the old policy's log-probabilities and routes: the model's present ones."""
    prepared: Prepared = []
    first: dict[tuple[Any, ...], MiniBatch] = {}
    for arm in arms:
        (mini_batch,) = mini_batches_of(batch, arm, 1, noise)
        prepared.append((arm, mini_batch))
        key = passes(arm, mini_batch)
        if key in first:
            _copy_old_policy(first[key], mini_batch)
        else:
            first[key] = mini_batch
            _record_old_policy(arm.learner, mini_batch)
    return prepared


def mini_batches_of(batch: RolloutBatch, arm: Arm, num: int, noise: RecordedNoise | None = None) -> list[MiniBatch]:
    """A rollout batch as an arm trains on it, in `num` mini-batches."""
    recipe, learner = arm.run.recipe, arm.learner
    advantages_B = advantages_of(batch, recipe, arm.run.algorithm, arm.run.params)
    batching = Batching(
        minibatches=num,
        micro_batch_tokens=recipe.train.micro_batch_tokens,
        keep_rows_without_advantage=learner.reference is not None or learner.algorithm.EVERY_ROW,
        whole_groups=learner.algorithm.WHOLE_GROUPS,
        mask_truncated=recipe.algo.truncation == "mask",
        routing=learner.routing if recipe.records_routes else None,
        packed=paths_of(learner.model).packed,
        noise=noise,
    )
    return make_mini_batches(batch, advantages_B, batching, learner.model.device)


@torch.no_grad()
def _record_old_policy(learner: Learner, mini_batch: MiniBatch) -> None:
    """As before a rollout batch's first update, for every micro-batch and without the noise."""
    with tapped(learner.routing) as tap:
        for micro in mini_batch.micro_batches:
            with routed(tap, micro, record_to_replay(learner.algo, micro)):
                micro.trainer_log_probs_BT = scored(learner.model, micro, learner.temperature).log_probs_BT
            micro.old_routes_LNK = natural_routes(tap, micro)


def _copy_old_policy(source: MiniBatch, target: MiniBatch) -> None:
    for known, micro in zip(source.micro_batches, target.micro_batches, strict=True):
        micro.trainer_log_probs_BT, micro.old_routes_LNK = known.trainer_log_probs_BT, known.old_routes_LNK


def estimates(prepared: Prepared, noises: Sequence[float], compressor: Compressor) -> dict[tuple[str, float], Estimate]:
    """The gradient of every arm at the model's present weights, by (arm, noise).

    A noise of sigma adds sigma times the prepared noise to the old policy's log-probabilities.
    Arms whose token weights agree share the backward pass.
    """
    groups: dict[tuple[bool, str, str, bool], dict[tuple[str, float], _Sum]] = defaultdict(dict)
    for arm, mini_batch in prepared:
        groups[passes(arm, mini_batch)] |= {(arm.name, sigma): _Sum(arm, mini_batch) for sigma in noises}
    found: dict[tuple[str, float], Estimate] = {}
    for sums in groups.values():
        for index in range(len(next(iter(sums.values())).mini_batch.micro_batches)):
            _add_pass(sums, index, compressor)
        found |= {key: value.result(compressor) for key, value in sums.items()}
    return found


@dataclass
class _Sum:
    """What the passes over a batch have added up for one arm and noise."""

    arm: Arm
    mini_batch: MiniBatch
    gradient_D: Tensor | None = None
    metrics: Accumulator = field(default_factory=Accumulator)

    def result(self, compressor: Compressor) -> Estimate:
        denominator = global_denominator(self.arm.run.algorithm, self.mini_batch, self.arm.run.params)
        self.metrics.add(skipped_rows(self.mini_batch, self.metrics))
        values = self.metrics.result().values
        gradient_D = compressor.zero() if self.gradient_D is None else self.gradient_D / denominator
        return Estimate(gradient_D, values.get("weight/effective_frac"), values.get("clip/token_frac"))


def _add_pass(sums: dict[tuple[str, float], _Sum], index: int, compressor: Compressor) -> None:
    """One forward pass, and a backward pass for each different set of token weights."""
    first = next(iter(sums.values()))
    learner, shared = first.arm.learner, first.mini_batch.micro_batches[index]
    with tapped(learner.routing) as tap, routed(tap, shared, record_to_replay(learner.algo, shared)):
        scores = scored(learner.model, shared, learner.temperature)
        done: list[tuple[Tensor, Tensor]] = []
        for (_, sigma), value in sums.items():
            micro = with_noise(value.mini_batch.micro_batches[index], sigma, value.arm)
            output, numerator = objective(value.arm.learner, micro, scores, value.metrics)
            on_policy_BT = at_ratio_one(value.arm.learner, micro, scores.log_probs_BT)
            value.metrics.add(weight_metrics(output.gradient_weight_BT, on_policy_BT))
            found_D = None if micro.ref_log_probs_BT is not None else _same(output.gradient_weight_BT, done)
            if found_D is None:
                wanted = compressor.parameters
                found_D = compressor.of(
                    torch.autograd.grad(-numerator, wanted, retain_graph=True, materialize_grads=True)
                )
                done.append((output.gradient_weight_BT, found_D))
            value.gradient_D = found_D if value.gradient_D is None else value.gradient_D + found_D


def _same(weight_BT: Tensor, done: list[tuple[Tensor, Tensor]]) -> Tensor | None:
    """The gradient of equal token weights, if there is one; rounding aside."""
    return next((g_D for known_BT, g_D in done if torch.allclose(known_BT, weight_BT, rtol=1e-6, atol=0.0)), None)


def with_noise(micro: MicroBatch, sigma: float, arm: Arm) -> MicroBatch:
    """The micro-batch with the old policy's log-probabilities that this arm's ratios are taken against."""
    sampler = arm.run.recipe.algo.old_log_probs == "sampler"
    old_BT = micro.sampler_log_probs_BT if sampler else micro.trainer_log_probs_BT
    assert old_BT is not None
    if sigma:
        assert micro.noise_BT is not None
        old_BT = old_BT + sigma * micro.noise_BT
    return replace(micro, old_log_probs_BT=old_BT)
