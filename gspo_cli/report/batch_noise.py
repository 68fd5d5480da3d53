"""How noisy an algorithm's gradient is, by bootstrap over the groups of the batch.

S = bootstrap draws, G = groups, K = entries of a sketch
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gspo_cli.seeds import derive_seed

DRAWS = 2000
MIN_GROUPS = 8
"""Below this no noise scale is given."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Of one algorithm's gradient estimate."""

    variance: float | None
    """Total variance (trace of the covariance) of the whole batch's gradient; None for a single group."""
    share: float | None
    """The same over the squared norm of the gradient; None if that is 0."""
    scale: float | None
    """Groups at which the noise would be as large as the signal: G V / (|g|^2 - V). None where V is not below |g|^2
    (the batch does not tell the signal from noise) and below `MIN_GROUPS` groups."""


def noise(sketch_GK: Tensor, shares_G: Tensor, squared_norm: float) -> Noise:
    """The variance of g = sum_G n_G / sum_G d_G, with n the groups' gradients and d their parts of the denominator.

    Groups are drawn with replacement `DRAWS` times (seeded, the same draws for all algorithms), and V is the mean
    squared distance of the draws from their mean, times G / (G - 1), which makes it unbiased.
    Approximations: n as sketches (see `batch_gradients.Sketch`); whole groups are the unit, so prompts count as the
    only source of chance.   Noise scale: arXiv 1812.06162, Eq. 2.9 and A.1, here in groups, not tokens.
    """
    num_groups = len(shares_G)
    if num_groups == 1:
        return Noise(None, None, None)
    rng = np.random.default_rng(derive_seed(0, "bootstrap"))
    counts_SG = torch.from_numpy(rng.multinomial(num_groups, np.full(num_groups, 1 / num_groups), DRAWS)).double()
    draws_SG = counts_SG / (counts_SG @ shares_G)[:, None]
    centred_SG = draws_SG - draws_SG.mean(0)
    products_GG = sketch_GK @ sketch_GK.T
    variance = float(((centred_SG @ products_GG) * centred_SG).sum(1).mean()) * num_groups / (num_groups - 1)
    signal = squared_norm - variance
    return Noise(
        variance=variance,
        share=variance / squared_norm if squared_norm else None,
        scale=num_groups * variance / signal if num_groups >= MIN_GROUPS and signal > 0 else None,
    )
