"""One optimizer step on one mini-batch, and the pass that fixes the old policy before the first of them.

B = responses, T = token positions, L = MoE layers, N = tokens whose experts count, K = experts per token
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gspo_cli.algorithms import Algorithm, LossOutput
from gspo_cli.algorithms.correction import BOUNDS, correction_metrics, correction_weight
from gspo_cli.algorithms.kl import kl_metrics, kl_terms
from gspo_cli.algorithms.ratio_metrics import ratio_metrics
from gspo_cli.config import AlgoConfig
from gspo_cli.models.log_probs import TokenScores, token_scores
from gspo_cli.models.lora import adapters_off
from gspo_cli.models.sharding import whole
from gspo_cli.moe.routers import Routing
from gspo_cli.moe.tap import tapped
from gspo_cli.ranks import ALONE, Ranks
from gspo_cli.training.accumulate import Accumulator
from gspo_cli.training.batches import global_denominator
from gspo_cli.training.critic import Critic
from gspo_cli.training.merge import merged
from gspo_cli.training.routes import natural_routes, record_to_replay, route_metrics, routed
from gspo_cli.types import Mean, MicroBatch, MiniBatch, Reduced


@dataclass(frozen=True)
class Learner:
    """What an update needs besides its data."""

    model: PreTrainedModel
    optimizer: torch.optim.Optimizer
    algorithm: Algorithm
    params: Any
    algo: AlgoConfig
    """The modifiers: KL, correction, Routing Replay, whose old log-probabilities."""
    temperature: float
    grad_clip: float
    critic: Critic | None = None
    reference: PreTrainedModel | None = None
    """The start model, frozen, for the KL penalty; or the model itself, whose adapters are then switched off."""
    routing: Routing | None = None
    """The model's routers; None for a dense model."""
    ranks: Ranks = ALONE

    @property
    def needs_old_pass(self) -> bool:
        """Whether the old policy's own values are wanted for every mini-batch: its log-probabilities or its routes."""
        return self.algo.old_log_probs == "trainer" or self.algo.replay == "r2"


def log_bounds(params: Any) -> tuple[float, float] | None:
    """The algorithm's clip range for a log-ratio; None without a hard clip."""
    clip = getattr(params, "clip", None)
    return clip.log_bounds if clip is not None else None


@torch.no_grad()
def record_old_policy(learner: Learner, mini_batches: list[MiniBatch]) -> None:
    """Fills in what is fixed before the first update, in the layout that training uses.

    The first mini-batch's log-probabilities and routes come from its own training pass, which is at the old policy.
    """
    with tapped(learner.routing) as tap:
        for index, mini_batch in enumerate(mini_batches):
            for micro in mini_batch.micro_batches:
                if learner.reference is not None:
                    with adapters_off(learner.reference):
                        scores = scored(learner.reference, micro, learner.temperature)
                    micro.ref_log_probs_BT = scores.log_probs_BT
                if learner.algo.old_log_probs == "sampler":
                    micro.old_log_probs_BT = micro.sampler_log_probs_BT
                if index > 0 and learner.needs_old_pass:
                    with routed(tap, micro, record_to_replay(learner.algo, micro)):
                        scores = scored(learner.model, micro, learner.temperature)
                    adopt_as_old(micro, scores, natural_routes(tap, micro))


def scored(model: PreTrainedModel, micro: MicroBatch, temperature: float) -> TokenScores:
    """A micro-batch's log-probabilities under a model."""
    return token_scores(model, micro.input_ids_BT, micro.mask_BT, temperature, micro.packing)


def update(learner: Learner, mini_batch: MiniBatch, lr: float, first: bool) -> Accumulator:
    """Forward, backward and one optimizer step; weights stay as they are when there is no signal or a non-finite one.

    `first` = no update has been made on this rollout batch yet: the values of this pass are the old policy's, and
    ratios against the trainer's own are exactly 1.
    """
    metrics = Accumulator()
    denominator = global_denominator(learner.algorithm, mini_batch, learner.params)
    learner.optimizer.zero_grad(set_to_none=True)
    loss = torch.zeros((), dtype=torch.float64, device=learner.model.device)
    with tapped(learner.routing) as tap:
        for micro in mini_batch.micro_batches:
            record_LNK = record_to_replay(learner.algo, micro)
            with routed(tap, micro, record_LNK):
                scores = scored(learner.model, micro, learner.temperature)
                if first:
                    adopt_as_old(micro, scores, natural_routes(tap, micro))
                if micro.filler:
                    (0.0 * scores.log_probs_BT.sum()).backward()
                    continue
                output, numerator = objective(learner, micro, scores, metrics)
                (numerator / denominator).backward()
            loss += numerator.detach() / denominator
            assert micro.old_log_probs_BT is not None
            metrics.add(
                ratio_metrics(scores.log_probs_BT, micro.old_log_probs_BT, scores.entropy_BT, micro.mask_BT, output)
            )
            metrics.add(route_metrics(learner.algo, tap, micro, record_LNK))
    metrics = merged(metrics, learner.ranks)
    if mini_batch.micro_batches:
        metrics.add(step(learner, loss, lr))
        if learner.critic is not None and was_applied(metrics):
            metrics.add(learner.critic.update(mini_batch, learner.params))
    else:
        metrics.add({"update/applied": Mean(torch.zeros(()), 1)})
    metrics.add(skipped_rows(mini_batch, metrics))
    return metrics


def was_applied(metrics: Accumulator) -> bool:
    """Whether the policy's step was made."""
    applied = metrics.values["update/applied"]
    return isinstance(applied, Mean) and float(applied.numerator) > 0


def adopt_as_old(micro: MicroBatch, scores: TokenScores, routes_LNK: Tensor | None) -> None:
    """Takes the values of a pass before the first update as the old policy's."""
    micro.trainer_log_probs_BT, micro.old_routes_LNK = scores.log_probs_BT.detach(), routes_LNK
    if micro.old_log_probs_BT is None:
        micro.old_log_probs_BT = micro.trainer_log_probs_BT


def objective(
    learner: Learner, micro: MicroBatch, scores: TokenScores, metrics: Accumulator
) -> tuple[LossOutput, Tensor]:
    """The algorithm's loss on one micro-batch, and its numerator with the KL penalty on top."""
    assert micro.old_log_probs_BT is not None
    algo, weights = learner.algo, None
    if algo.correction.kind != "none":
        low, high = BOUNDS[algo.correction.kind]
        bounds = (low if algo.correction.low is None else algo.correction.low, algo.correction.high or high)
        weights = correction_weight(
            micro.old_log_probs_BT, micro.sampler_log_probs_BT, micro.mask_BT,
            learner.algorithm.UNIT, algo.correction.kind, bounds,
        )  # fmt: skip
        metrics.add(correction_metrics(weights, micro.mask_BT, algo.correction.kind, bounds))
    output = learner.algorithm.loss(
        scores.log_probs_BT, micro.old_log_probs_BT, micro.advantages, micro.mask_BT, learner.params,
        sampler_log_probs_BT=micro.sampler_log_probs_BT, weights=weights,
    )  # fmt: skip
    metrics.add(output.metrics)
    if micro.ref_log_probs_BT is None:
        return output, output.loss_numerator
    terms_BT = kl_terms(scores.log_probs_BT, micro.ref_log_probs_BT, micro.mask_BT, algo.kl.estimator)
    metrics.add(kl_metrics(scores.log_probs_BT, micro.ref_log_probs_BT, micro.mask_BT))
    penalty = learner.algorithm.token_terms(terms_BT, micro.mask_BT)
    return output, output.loss_numerator + algo.kl.coef * penalty


def step(learner: Learner, loss: Tensor, lr: float) -> dict[str, Reduced]:
    """Clips the gradient to the global norm and steps, unless loss or norm is not finite: checked before clipping,
    which would turn an infinite norm into zeros and NaN."""
    parameters = [p for p in learner.model.parameters() if p.grad is not None]
    norm = whole(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
    if learner.ranks.size > 1:
        loss = loss.new_tensor(learner.ranks.total([float(loss)])[0])
    applied = math.isfinite(float(loss)) and math.isfinite(float(norm))
    if applied:
        nn.utils.clip_grads_with_norm_(parameters, learner.grad_clip, norm)
        for group in learner.optimizer.param_groups:
            group["lr"] = lr
        learner.optimizer.step()
    learner.optimizer.zero_grad(set_to_none=True)
    return {
        "loss": Mean(loss, 1),
        "grad/norm": Mean(norm, 1),
        "grad/clipped_frac": Mean((norm > learner.grad_clip).double(), 1),
        "update/applied": Mean(torch.tensor(float(applied)), 1),
        "lr": Mean(torch.tensor(lr, dtype=torch.float64), 1),
    }


TOKEN_SHARES = ("clip/token_frac", "clip/low_frac", "clip/high_frac", "clip/dual_frac")
RESPONSE_SHARES = ("clip/seq_frac", "clip/seq_any_frac")


def skipped_rows(mini_batch: MiniBatch, metrics: Accumulator) -> dict[str, Reduced]:
    """Clip fractions count all responses; those left out of the passes are added to the denominators here."""
    zero = torch.zeros(())
    shares = dict.fromkeys(TOKEN_SHARES, mini_batch.skipped_tokens)
    shares |= dict.fromkeys(RESPONSE_SHARES, mini_batch.num_skipped)
    added: dict[str, Reduced] = {n: Mean(zero, count) for n, count in shares.items() if n in metrics.values}
    rows = len(mini_batch.mask_BT)
    return added | {"update/skipped_rows_frac": Mean(torch.tensor(float(mini_batch.num_skipped)), rows)}
