"""All measurements of one stored batch. B = responses, T = response token positions."""

from dataclasses import dataclass

import torch

from gspo_cli.instruments.batch.data import StoredBatch
from gspo_cli.instruments.batch.gradients import Gradients, gradients
from gspo_cli.instruments.batch.lengths import (
    LengthBucket,
    LengthNoise,
    RatioSpread,
    buckets,
    length_noise,
    slope,
    spread,
)
from gspo_cli.instruments.batch.losses import Loss, TokenForm, TokenScores, losses, token_form
from gspo_cli.instruments.batch.policy import Policy, log_probs, response_mask, sampler_log_probs


@dataclass(frozen=True, slots=True)
class BatchMeasurements:
    """What was measured on one batch."""

    batch: StoredBatch
    sampling: Policy
    later: Policy | None
    """None: l is the sampling policy's, so every ratio is 1."""
    scores: TokenScores
    losses: dict[str, Loss]
    """By algorithm."""
    gradients: Gradients
    """In the order of `losses`."""
    spread: RatioSpread
    buckets: list[LengthBucket]
    token_form: TokenForm
    length_noise: LengthNoise | None
    """None without a later policy: all ratios are 1 and the algorithms' gradients the same."""

    @property
    def slope(self) -> float | None:
        """See `batch_lengths.slope`."""
        return slope(self.buckets)

    @property
    def mismatch(self) -> float:
        """Root mean square over tokens of o - m, in nats."""
        return float((self.scores.old_BT - self.scores.sampler_BT)[self.scores.mask_BT].square().mean().sqrt())

    def norm(self, algorithm: str) -> float:
        """|dJ/dtheta|."""
        square = self.gradients.products_AA.diagonal()[list(self.losses).index(algorithm)]
        return float(square.sqrt() / self.losses[algorithm].output.denominator)


def measure(batch: StoredBatch, sampling: Policy, later: Policy | None) -> BatchMeasurements:
    """Two passes over the batch: log-probabilities without gradient, then the gradients."""
    old_BT = log_probs(sampling, batch)
    now_BT = old_BT if later is None else log_probs(later, batch)
    scores = TokenScores(now_BT, old_BT, sampler_log_probs(batch), response_mask(batch))
    found = losses(batch, scores)
    weight_ABT = torch.stack([loss.output.gradient_weight_BT for loss in found.values()])
    return BatchMeasurements(
        batch=batch,
        sampling=sampling,
        later=later,
        scores=scores,
        losses=found,
        gradients=gradients((later or sampling).model, batch, weight_ABT),
        spread=spread(scores, torch.ones(len(now_BT), dtype=torch.bool)),
        buckets=buckets(scores, found),
        token_form=token_form(batch, scores, found["gspo"]),
        length_noise=None if later is None else length_noise(later, batch, found),
    )
