"""Gradients of every algorithm from one forward pass a group, and how noisy they are."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gspo_cli.instruments.batch.data import StoredBatch
from gspo_cli.instruments.batch.policy import chunks, forward
from gspo_cli.seeds import derive_seed

SKETCH = 16381  # entries; a prime, so that the folds do not fall in step with the rows of weight matrices


@dataclass(frozen=True, slots=True)
class Gradients:
    """Of the numerators: J's denominator is not yet divided by."""

    products_AA: Tensor
    """Exact inner products between the algorithms' gradients over the whole batch, float64."""
    sketch_AGK: Tensor
    """Sketch of each group's gradient, float64; the sum over groups is the sketch of the whole."""


def gradients(model: PreTrainedModel, batch: StoredBatch, weight_ABT: Tensor) -> Gradients:
    """sum_it weight_it grad l_it over the batch and over each group, for every algorithm's weights.

    A group whose weights are all 0 has gradient 0 and is not passed through the model.
    Not covered: models of which one gradient per algorithm does not fit in memory.
    """
    totals = [torch.zeros(len(weight_ABT), *p.shape, device=p.device) for p in trained(model)]
    sketch = Sketch(model)
    sketch_AGK = torch.zeros(len(weight_ABT), len(batch.groups), SKETCH, dtype=torch.float64)
    for group, members in enumerate(batch.groups):
        for rows in chunks(batch, members):
            if not weight_ABT[:, rows].any():
                continue
            for a, parts in enumerate(weighted_scores(model, batch, rows, weight_ABT)):
                for total, part in zip(totals, parts, strict=True):
                    total[a] += part
                sketch_AGK[a, group] += sketch.of(parts)
    return Gradients(_products(totals), sketch_AGK)


def weighted_scores(
    model: PreTrainedModel, batch: StoredBatch, rows: list[int], weight_ABT: Tensor
) -> Iterator[tuple[Tensor, ...]]:
    """sum_it weight_it grad l_it over these rows for every algorithm's weights, one tensor a parameter, from one
    forward pass."""
    log_probs_N, parameters = forward(model, batch, rows), trained(model)
    for weight_BT in weight_ABT:
        weight_N = torch.cat([weight_BT[i, : len(batch.responses[i].token_ids)] for i in rows]).to(log_probs_N)
        yield torch.autograd.grad(log_probs_N, parameters, weight_N, retain_graph=True, materialize_grads=True)


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that have a gradient."""
    return [p for p in model.parameters() if p.requires_grad]


def _products(totals: list[Tensor]) -> Tensor:
    """Inner products [A, A] in float64, one parameter after the other."""
    products_AA = torch.zeros(len(totals[0]), len(totals[0]), dtype=torch.float64)
    for total in totals:
        flat = total.flatten(1).double()
        products_AA += (flat @ flat.T).cpu()
    return products_AA


class Sketch:
    """A linear map to `SKETCH` numbers that keeps inner products: random signs, then entries that are `SKETCH` apart
    summed (count sketch with fixed buckets; Charikar, Chen and Farach-Colton 2002).

    E<Sx, Sy> = <x, y>, with a standard deviation of about |x||y| / sqrt(SKETCH), 0.8 %; exact for fewer parameters
    than that.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        parameters = trained(model)
        generator = torch.Generator().manual_seed(derive_seed(0, "sketch"))
        bits = torch.randint(0, 2, (sum(p.numel() for p in parameters),), generator=generator, dtype=torch.int8)
        self.signs = (2 * bits - 1).to(parameters[0].device)

    def of(self, parts: Iterable[Tensor]) -> Tensor:
        """The sketch of a gradient given as one tensor a parameter: float64 [K] on the CPU."""
        signed = torch.cat([part.flatten() for part in parts]).float() * self.signs
        folds = torch.nn.functional.pad(signed, (0, -len(signed) % SKETCH)).view(-1, SKETCH)
        return folds.sum(0).double().cpu()


DRAWS = 2000
MIN_GROUPS = 8
"""Below this no noise scale is given."""


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """Of one algorithm's gradient estimate."""

    variance: float | None
    """Total variance (trace of the covariance) of the whole batch's gradient; None for a single group."""
    share: float | None
    """The same over the squared norm of the gradient; None if that is 0."""
    scale: float | None
    """Groups at which the noise would be as large as the signal: G V / (|g|^2 - V). None where V is not below |g|^2
    (the batch does not tell the signal from noise) and below `MIN_GROUPS` groups."""


def noise(sketch_GK: Tensor, shares_G: Tensor, squared_norm: float) -> GradientNoise:
    """The variance of g = sum_G n_G / sum_G d_G, with n the groups' gradients and d their parts of the denominator.

    Groups are drawn with replacement `DRAWS` times (seeded, the same draws for all algorithms), and V is the mean
    squared distance of the draws from their mean, times G / (G - 1), which makes it unbiased.
    Approximations: n as sketches (see `batch_gradients.Sketch`); whole groups are the unit, so prompts count as the
    only source of chance.   Noise scale: arXiv 1812.06162, Eq. 2.9 and A.1, here in groups, not tokens.
    """
    num_groups = len(shares_G)
    if num_groups == 1:
        return GradientNoise(None, None, None)
    rng = np.random.default_rng(derive_seed(0, "bootstrap"))
    counts_SG = torch.from_numpy(rng.multinomial(num_groups, np.full(num_groups, 1 / num_groups), DRAWS)).double()
    draws_SG = counts_SG / (counts_SG @ shares_G)[:, None]
    centred_SG = draws_SG - draws_SG.mean(0)
    products_GG = sketch_GK @ sketch_GK.T
    variance = float(((centred_SG @ products_GG) * centred_SG).sum(1).mean()) * num_groups / (num_groups - 1)
    signal = squared_norm - variance
    return GradientNoise(
        variance=variance,
        share=variance / squared_norm if squared_norm else None,
        scale=num_groups * variance / signal if num_groups >= MIN_GROUPS and signal > 0 else None,
    )
