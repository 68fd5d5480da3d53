"""Every algorithm's loss on the same rows, its token weights, and GSPO-token held against GSPO."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gspo_cli.algorithms import ALGORITHMS, AlgorithmSpec, LossInputs, LossOutput
from gspo_cli.algorithms.critic import whiten_responses
from gspo_cli.algorithms.metrics import weight_metrics, weight_variation
from gspo_cli.algorithms.ops import group_advantage, sequence_log_ratio, token_log_ratio
from gspo_cli.instruments.batch.data import StoredBatch
from gspo_cli.training.step.metrics import Accumulator

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Log-probabilities of the response tokens, float64 [B, T], and which positions are tokens."""

    now_BT: Tensor
    """l: under the policy that is updated."""
    old_BT: Tensor
    """o: under the policy that sampled, recomputed by the trainer."""
    sampler_BT: Tensor
    """m: as the sampler stored them."""
    mask_BT: Tensor

    @property
    def log_w_BT(self) -> Tensor:
        """Log-ratio of each token, 0 elsewhere."""
        return token_log_ratio(self.now_BT, self.old_BT, self.mask_BT)

    @property
    def log_s_B(self) -> Tensor:
        """Log-ratio of each response."""
        return sequence_log_ratio(self.now_BT, self.old_BT, self.mask_BT)[:, 0]


@dataclass(frozen=True, slots=True)
class Loss:
    """One algorithm on the batch."""

    output: LossOutput
    advantages_B: Tensor
    shares_G: Tensor
    """Each group's part of the denominator."""
    metrics: dict[str, float | None]
    """The algorithm's own metrics (clip/*, gate/*, ...), the spread of weights within a response and the effective
    share of the tokens that have an advantage, by logged name."""

    @property
    def objective(self) -> float:
        """J."""
        return -float(self.output.loss_numerator / self.output.denominator)

    @property
    def weight_BT(self) -> Tensor:
        """dJ/dl of each token: [B, T]."""
        return self.output.gradient_weight_BT / self.output.denominator


def losses(batch: StoredBatch, scores: TokenScores) -> dict[str, Loss]:
    """Every algorithm with its published setting and advantage, on the whole batch as one mini-batch.

    `ppo` has no critic here and takes the group advantage; `dr_grpo` takes the batch's generation limit.
    """
    rewards_B = torch.from_numpy(np.array([r.reward for r in batch.responses], dtype=np.float64))  # None is nan
    groups_B = torch.arange(len(batch.groups)).repeat_interleave(torch.tensor([len(rows) for rows in batch.groups]))
    mask_BT = scores.mask_BT & ~rewards_B.isnan()[:, None]  # as in training, an unscored response is in no mean
    found = {}
    for name, algorithm in ALGORITHMS.items():
        params = published(algorithm, batch)
        critic = algorithm.token_advantages is not None
        advantages_B = (
            group_advantage(rewards_B, groups_B) if critic else algorithm.advantage(rewards_B, groups_B, params)
        ).double()
        if algorithm.WHITEN:
            advantages_B = whiten_responses(advantages_B, mask_BT.sum(-1))
        inputs = LossInputs(scores.now_BT, scores.old_BT, advantages_B, mask_BT, groups_B, scores.sampler_BT)
        output = algorithm.loss(inputs, params)
        shares = [algorithm.denominator(mask_BT[rows], params) for rows in batch.groups]
        on_policy = replace(inputs, old_log_probs_BT=scores.now_BT, sampler_log_probs_BT=scores.now_BT)
        at_one_BT, metrics = algorithm.loss(on_policy, params).gradient_weight_BT, Accumulator()
        metrics.add(output.metrics | {"weight/within_seq_cv": weight_variation(output.gradient_weight_BT, mask_BT)})
        metrics.add(weight_metrics(output.gradient_weight_BT, at_one_BT))
        found[name] = Loss(output, advantages_B, torch.stack(shares).double(), metrics.result().values)
    return found


def published(algorithm: AlgorithmSpec, batch: StoredBatch) -> Any:
    """The algorithm's default parameters, with the batch's generation limit where it has one."""
    params = algorithm.Params()
    has_limit = any(field.name == "max_length" for field in fields(params))
    return replace(params, max_length=batch.max_length[0]) if has_limit else params


def weight_quantiles(loss: Loss, mask_BT: Tensor, here_BT: Tensor) -> dict[str, float] | None:
    """Quantiles of |dJ/dl| over the tokens of `here_BT` that have an advantage, in units of the mean over all tokens
    that have one; clipped tokens count as 0. None where all weights are 0."""
    active_BT = (loss.advantages_B != 0)[:, None]
    absolute_BT = loss.weight_BT.abs()
    mean = absolute_BT[mask_BT & active_BT].mean()
    chosen_N = absolute_BT[here_BT & active_BT]
    if not len(chosen_N) or not float(mean):
        return None
    # not torch.quantile, which takes 16 million numbers at most
    values = np.quantile(chosen_N.numpy() / float(mean), QUANTILES)
    return {f"p{100 * q:02.0f}": float(v) for q, v in zip(QUANTILES, values, strict=True)}


def kish(weight: Tensor) -> float | None:
    """Effective number of equal weights, (sum |w|)^2 / sum w^2 (Kish 1965, §11.7); None if all are 0."""
    squares = float(weight.square().sum())
    return float(weight.abs().sum()) ** 2 / squares if squares else None


@dataclass(frozen=True, slots=True)
class TokenForm:
    """Largest differences between `gspo` and `gspo_token`, float64."""

    loss: float
    gradient: float
    """Of dJ/dl over tokens, by autograd, over the largest entry of GSPO's."""
    masks_equal: bool
    """Whether the same tokens are clipped."""


def token_form(batch: StoredBatch, scores: TokenScores, gspo: Loss) -> TokenForm:
    """Both losses at GSPO's published setting.   Paper: arXiv 2507.18071, §4.3, Eq. 13-17."""
    (plain, plain_BT), (token, token_BT) = (_of(name, batch, scores, gspo) for name in ("gspo", "gspo_token"))
    scale = float(plain_BT.abs().max())
    apart = float((plain_BT - token_BT).abs().max())
    assert plain.clipped_BT is not None and token.clipped_BT is not None
    return TokenForm(
        loss=abs(float((plain.loss_numerator / plain.denominator - token.loss_numerator / token.denominator).detach())),
        gradient=apart / scale if scale else apart,
        masks_equal=bool((plain.clipped_BT == token.clipped_BT).all()),
    )


def _of(name: str, batch: StoredBatch, scores: TokenScores, gspo: Loss) -> tuple[LossOutput, Tensor]:
    """(the loss, its gradient for each token's log-probability [B, T])."""
    now_BT = scores.now_BT.detach().clone().requires_grad_()
    algorithm = ALGORITHMS[name]
    scored_B = ~gspo.advantages_B.isnan()
    inputs = LossInputs(now_BT, scores.old_BT, gspo.advantages_B, scores.mask_BT & scored_B[:, None])
    output = algorithm.loss(inputs, published(algorithm, batch))
    (gradient_BT,) = torch.autograd.grad(output.loss_numerator / output.denominator, now_BT)
    return output, gradient_BT
