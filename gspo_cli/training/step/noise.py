"""Synthetic noise on the recorded log-probabilities of the old policy, a stand-in for what makes them wrong.

Real causes (another engine, another precision, an expert that changed) cannot be set to a wanted size; this can.
B = responses, T = token positions
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from gspo_cli.config import NoiseConfig, Recipe
from gspo_cli.seeds import derive_seed
from gspo_cli.types import RouteNoise, Sample

DEGREES = 3
"""Of freedom of Student's t: the fewest whole number with a variance."""


@dataclass(frozen=True, slots=True)
class RecordedNoise:
    """Noise of one rollout batch, in nats. The same for all arms of a study: no key names an algorithm."""

    seed: int
    """The run's."""
    step: int
    """Number of the rollout batch."""
    config: NoiseConfig

    def of(self, sample: Sample) -> Tensor:
        """What is added to the log-probabilities of a response's tokens: float64 [L].

        It depends on (seed, step, problem, index, position) alone, not on what else is in the batch.
        """
        key = derive_seed(self.seed, "noise", self.step, sample.problem_id, sample.index)
        generator = np.random.Generator(np.random.Philox(key))
        shared = self._draw(generator, 1)
        each = self._draw(generator, len(sample.token_ids))
        return torch.from_numpy(self.config.response * shared + self.config.token * each)

    def _draw(self, generator: np.random.Generator, size: int) -> np.ndarray:
        if self.config.tail == "normal":
            return generator.standard_normal(size)
        return generator.standard_t(DEGREES, size) / sqrt(DEGREES / (DEGREES - 2))


def noise_of(recipe: Recipe, step: int) -> RecordedNoise | None:
    """The noise of a run's rollout batch; None for a recipe without."""
    noise = recipe.noise
    if noise is None or not (noise.token or noise.response or noise.experts):
        return None
    return RecordedNoise(recipe.seed, step, noise)


def route_noise(noise: RecordedNoise) -> RouteNoise | None:
    """The router noise of one of the batch's micro-batches; None without."""
    share = noise.config.experts
    return RouteNoise(share, derive_seed(noise.seed, "experts", noise.step)) if share else None


def noise_matrix(noise: RecordedNoise, rows: Sequence[tuple[int, Sample]], width: int) -> Tensor:
    """The noise of rows given as (prompt tokens, response), 0 outside the responses: float32 [B, T]."""
    noise_BT = torch.zeros(len(rows), width)
    for i, (start, sample) in enumerate(rows):
        noise_BT[i, start : start + len(sample.token_ids)] = noise.of(sample).float()
    return noise_BT
