"""One optimizer step on one mini-batch, and the passes that record the old policy before the first step.

B = responses, T = token positions, L = MoE layers, N = tokens whose experts count, K = experts per token
"""

import math
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from transformers import PreTrainedModel

from gspo_cli.algorithms import AlgorithmSpec, LossInputs, LossOutput
from gspo_cli.algorithms.correction import BOUNDS, correction_metrics, correction_weight, off_policy_mask
from gspo_cli.algorithms.kl import kl_metrics, kl_terms
from gspo_cli.algorithms.metrics import ratio_metrics
from gspo_cli.config import AlgoConfig
from gspo_cli.distributed import SINGLE_PROCESS, Ranks
from gspo_cli.models.log_probs import TokenScores, token_scores
from gspo_cli.models.lora import adapters_off
from gspo_cli.models.sharding import full_tensor
from gspo_cli.models.trunk import head_dim
from gspo_cli.moe.hooks import RouterTap, tapped
from gspo_cli.moe.replay import natural_routes, num_input_tokens, record_to_replay, route_metrics, routed
from gspo_cli.moe.route_noise import logit_noise, noised_routes, prefix_hashes
from gspo_cli.moe.routers import Routing, active_parameters
from gspo_cli.moe.volatility import slot_churn
from gspo_cli.training.step.critic import Critic
from gspo_cli.training.step.loss_scale import after_step
from gspo_cli.training.step.metrics import Accumulator, merge_ranks
from gspo_cli.training.step.weight_health import health_metrics, length_edges
from gspo_cli.types import Mean, MicroBatch, MiniBatch, Reduced


@dataclass(frozen=True)
class Learner:
    """What an update needs besides data."""

    model: PreTrainedModel
    optimizer: torch.optim.Optimizer
    algorithm: AlgorithmSpec
    params: Any
    algo: AlgoConfig
    """The modifiers: KL penalty, correction, Routing Replay, source of the old log-probabilities."""
    temperature: float
    grad_clip: float
    critic: Critic | None = None
    reference: PreTrainedModel | None = None
    """The frozen start model for the KL penalty; or the model itself, with its adapters switched off for the pass."""
    routing: Routing | None = None
    """The model's routers; None for a dense model."""
    scaler: GradScaler = field(default_factory=partial(GradScaler, enabled=False))
    """Scales the loss where passes are in float16."""
    ranks: Ranks = SINGLE_PROCESS

    @property
    def needs_old_pass(self) -> bool:
        """Whether every mini-batch needs the old policy's own log-probabilities or routes."""
        return self.algo.old_log_probs == "trainer" or self.algo.replay == "r2"

    @cached_property
    def active_parameters(self) -> tuple[int, int]:
        """Parameters in the matrix products of one token: all, and those that are trained."""
        return active_parameters(self.model), active_parameters(self.model, trained=True)

    @cached_property
    def attention_share(self) -> float:
        """L q d / A: the products of attention (2 L q d T per token of a causal row) for each product with a weight
        (2 A). 0 without attention heads; a window makes it an upper bound."""
        config = self.model.config.get_text_config()
        width = (head_dim(self.model) or 0) * getattr(config, "num_attention_heads", 0)
        return float(config.num_hidden_layers * width / self.active_parameters[0])


def log_bounds(params: Any) -> tuple[float, float] | None:
    """The algorithm's clip range for a log-ratio; None without a hard clip."""
    return getattr(getattr(params, "clip", None), "log_bounds", None)


@torch.no_grad()
def record_old_policy(learner: Learner, mini_batches: list[MiniBatch]) -> None:
    """Fills in what is fixed before the first update: log-probabilities of the old policy and the reference, routes.

    The first mini-batch takes the old policy's values from its own training pass, which is made at the old policy.
    """
    with tapped(learner.routing) as tap:
        for index, mini_batch in enumerate(mini_batches):
            for micro in mini_batch.micro_batches:
                if learner.reference is not None:
                    with adapters_off(learner.reference):
                        scores = scored(learner.reference, micro, learner.temperature)
                    micro.ref_log_probs_BT = scores.log_probs_BT
                if learner.algo.old_log_probs == "sampler":
                    micro.old_log_probs_BT = with_noise(micro.sampler_log_probs_BT, micro)
                if micro.route_noise is not None:
                    record_noised_experts(learner, tap, micro)
                elif index > 0 and learner.needs_old_pass:
                    with routed(tap, micro, record_to_replay(learner.algo, micro)):
                        scores = scored(learner.model, micro, learner.temperature)
                    adopt_as_old(micro, scores, natural_routes(tap, micro))


def scored(model: PreTrainedModel, micro: MicroBatch, temperature: float) -> TokenScores:
    """The log-probabilities and entropies of a micro-batch's loss tokens under a model."""
    return token_scores(model, micro.input_ids_BT, micro.mask_BT, temperature, micro.packing, micro.loss_M)


def update(learner: Learner, mini_batch: MiniBatch, lr: float, first: bool) -> Accumulator:
    """Forward, backward and one optimizer step. Without a signal, or with one that is not finite, no weight changes.

    `first` = this is the rollout batch's first update: the values of its passes are the old policy's, and ratios
    against the trainer's own are exactly 1 but for synthetic noise. Returns the update's metrics over all ranks.
    """
    metrics = Accumulator()
    denominator = global_denominator(learner.algorithm, mini_batch, learner.params)
    learner.optimizer.zero_grad(set_to_none=True)
    loss = torch.zeros((), dtype=torch.float64, device=learner.model.device)
    edges = length_edges(mini_batch)
    with tapped(learner.routing) as tap:
        for micro in mini_batch.micro_batches:
            record_LNK = record_to_replay(learner.algo, micro)
            with routed(tap, micro, record_LNK):
                scores = scored(learner.model, micro, learner.temperature)
                if first and micro.route_noise is None:
                    adopt_as_old(micro, scores, natural_routes(tap, micro))
                if micro.filler:
                    learner.scaler.scale(0.0 * scores.log_probs_BT.sum()).backward()
                    continue
                output, numerator = objective(learner, micro, scores, metrics)
                learner.scaler.scale(numerator / denominator).backward()
            loss += numerator.detach() / denominator
            assert micro.old_log_probs_BT is not None
            old_BT, mask_BT = micro.old_log_probs_BT, micro.mask_BT
            metrics.add(ratio_metrics(scores.log_probs_BT, old_BT, scores.entropy_BT, mask_BT, output, micro.loss_M))
            at_one_BT = at_ratio_one(learner, micro, scores.log_probs_BT)
            metrics.add(health_metrics(scores.log_probs_BT.detach(), micro, output, at_one_BT, edges))
            metrics.add(route_metrics(learner.algo, tap, micro, record_LNK))
            if micro.route_noise is not None and micro.route_noise.measured is not None:
                metrics.add({"moe/noise_slot_churn": micro.route_noise.measured})
    metrics = merge_ranks(metrics, learner.ranks)
    if mini_batch.micro_batches:
        metrics.add(step(learner, loss, lr))
        if learner.critic is not None and was_applied(metrics):
            metrics.add(learner.critic.update(mini_batch, learner.params))
    else:
        metrics.add({"update/applied": Mean(torch.zeros(()), 1)})
    metrics.add(skipped_rows(mini_batch, metrics))
    return metrics


def global_denominator(algorithm: AlgorithmSpec, mini_batch: MiniBatch, params: Any) -> float:
    """What the loss of the whole mini-batch is divided by."""
    return float(algorithm.denominator(mini_batch.mask_BT, params))


def was_applied(metrics: Accumulator) -> bool:
    """Whether the policy took a step."""
    applied = metrics.values["update/applied"]
    return isinstance(applied, Mean) and float(applied.numerator) > 0


def adopt_as_old(micro: MicroBatch, scores: TokenScores, routes_LNK: Tensor | None) -> None:
    """Keeps the values of a pass before the first update as the old policy's."""
    micro.trainer_log_probs_BT, micro.old_routes_LNK = scores.log_probs_BT.detach(), routes_LNK
    if micro.old_log_probs_BT is None:
        micro.old_log_probs_BT = with_noise(micro.trainer_log_probs_BT, micro)


def record_noised_experts(learner: Learner, tap: RouterTap | None, micro: MicroBatch) -> None:
    """The old policy with synthetic router noise: one pass for its own choices, one with a share of them exchanged.

    The second gives the old log-probabilities and the routes that Routing Replay repeats.
    """
    noise = micro.route_noise
    assert tap is not None and noise is not None
    micro.trainer_log_probs_BT = scored(learner.model, micro, learner.temperature).log_probs_BT
    natural_LNK = natural_routes(tap, micro)
    logits_LNE = tap.logits_LRE[:, micro.positions_N].double()
    assert natural_LNK is not None
    hash_BT = prefix_hashes(micro.input_ids_BT, noise.key)
    hash_R = hash_BT.new_zeros(num_input_tokens(micro))
    index_BT = torch.arange(hash_BT.numel(), device=hash_BT.device) if micro.packing is None else micro.packing.index_BT
    hash_R[index_BT.flatten()] = hash_BT.flatten()  # positions that rows share have begun alike
    noise_LNE = logit_noise(hash_R[micro.positions_N], len(logits_LNE), logits_LNE.shape[-1])
    routes_LNK = noised_routes(logits_LNE, natural_LNK, noise_LNE, micro.predicts_M, noise.share).to(natural_LNK.dtype)
    with routed(tap, micro, routes_LNK):
        noised = scored(learner.model, micro, learner.temperature)
    noise.measured = slot_churn(natural_LNK[:, micro.predicts_M], routes_LNK[:, micro.predicts_M])
    micro.old_routes_LNK, micro.old_log_probs_BT = routes_LNK, with_noise(noised.log_probs_BT, micro)


def with_noise(log_probs_BT: Tensor, micro: MicroBatch) -> Tensor:
    """Recorded log-probabilities with the synthetic noise that the recipe asks for, if any."""
    return log_probs_BT if micro.noise_BT is None else log_probs_BT + micro.noise_BT


def objective(
    learner: Learner, micro: MicroBatch, scores: TokenScores, metrics: Accumulator
) -> tuple[LossOutput, Tensor]:
    """The algorithm's loss on one micro-batch, and its numerator with the KL penalty on top."""
    assert micro.old_log_probs_BT is not None
    algo, weights = learner.algo, None
    if algo.correction.kind != "none":
        low, high = BOUNDS[algo.correction.kind]
        bounds = (low if algo.correction.low is None else algo.correction.low, algo.correction.high or high)
        if algo.correction.kind == "opsm":
            weights = off_policy_mask(
                scores.log_probs_BT, micro.sampler_log_probs_BT, micro.advantages, micro.mask_BT, bounds[1]
            )
        else:
            weights = correction_weight(
                micro.old_log_probs_BT, micro.sampler_log_probs_BT, micro.mask_BT,
                learner.algorithm.UNIT, algo.correction.kind, bounds,
            )  # fmt: skip
        metrics.add(correction_metrics(weights, micro.mask_BT, algo.correction.kind, bounds))
    inputs = LossInputs(
        scores.log_probs_BT, micro.old_log_probs_BT, micro.advantages, micro.mask_BT, micro.groups_B,
        micro.sampler_log_probs_BT, weights, micro.ref_log_probs_BT,
    )  # fmt: skip
    output = learner.algorithm.loss(inputs, learner.params)
    metrics.add(output.metrics)
    if micro.ref_log_probs_BT is None:
        return output, output.loss_numerator
    terms_BT = kl_terms(scores.log_probs_BT, micro.ref_log_probs_BT, micro.mask_BT, algo.kl.estimator)
    metrics.add(kl_metrics(scores.log_probs_BT, micro.ref_log_probs_BT, micro.mask_BT))
    penalty = learner.algorithm.token_terms(terms_BT, micro.mask_BT)
    return output, output.loss_numerator + algo.kl.coef * penalty


@torch.no_grad()
def at_ratio_one(learner: Learner, micro: MicroBatch, log_probs_BT: Tensor) -> Tensor:
    """The gradient weight [B, T] that the algorithm gives each token where all ratios are 1, without a correction."""
    log_probs_BT = log_probs_BT.detach()
    inputs = LossInputs(
        log_probs_BT, log_probs_BT, micro.advantages, micro.mask_BT, micro.groups_B, log_probs_BT, None,
        micro.ref_log_probs_BT,
    )  # fmt: skip
    return learner.algorithm.loss(inputs, learner.params).gradient_weight_BT


def step(learner: Learner, loss: Tensor, lr: float) -> dict[str, Reduced]:
    """Clips the gradient by its global norm and steps, unless loss or norm is not finite. That is checked before
    clipping, which would turn an infinite norm into zeros and NaN. A gradient that overflows in float16 at the present
    scale of the loss has no norm; the next one has half the scale."""
    learner.scaler.unscale_(learner.optimizer)
    parameters = [p for p in learner.model.parameters() if p.grad is not None]
    norm = full_tensor(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
    if learner.ranks.size > 1:
        loss = loss.new_tensor(learner.ranks.all_sum([float(loss)])[0])
    finite = [math.isfinite(x) for x in torch.stack([loss.double(), norm.double()]).tolist()]  # one transfer
    if applied := all(finite):
        nn.utils.clip_grads_with_norm_(parameters, learner.grad_clip, norm)
        for group in learner.optimizer.param_groups:
            group["lr"] = lr
        learner.optimizer.step()
    learner.optimizer.zero_grad(set_to_none=True)
    scale, overflowed = after_step(learner.scaler, finite[1])
    found: dict[str, Reduced] = {
        "loss": Mean(loss, 1),
        "update/applied": Mean(torch.tensor(float(applied)), 1),
        "lr": Mean(torch.tensor(lr, dtype=torch.float64), 1),
    }
    if scale is not None:
        found["grad/loss_scale"] = Mean(torch.tensor(scale, dtype=torch.float64), 1)
        found["update/overflow_frac"] = Mean(torch.tensor(float(overflowed)), 1)
    if not overflowed:
        found["grad/norm"] = Mean(norm, 1)
        found["grad/clipped_frac"] = Mean((norm > learner.grad_clip).double(), 1)
    return found


TOKEN_SHARES = ("clip/token_frac", "clip/low_frac", "clip/high_frac", "clip/dual_frac")
RESPONSE_SHARES = ("clip/seq_frac", "clip/seq_any_frac")


def skipped_rows(mini_batch: MiniBatch, metrics: Accumulator) -> dict[str, Reduced]:
    """Adds the responses left out of the passes to the denominators of the clip fractions, which count all."""
    zero = torch.zeros(())
    shares = dict.fromkeys(TOKEN_SHARES, mini_batch.skipped_tokens)
    shares |= dict.fromkeys(RESPONSE_SHARES, mini_batch.num_skipped)
    added: dict[str, Reduced] = {n: Mean(zero, count) for n, count in shares.items() if n in metrics.values}
    rows = len(mini_batch.mask_BT)
    return added | {"update/skipped_rows_frac": Mean(torch.tensor(float(mini_batch.num_skipped)), rows)}
