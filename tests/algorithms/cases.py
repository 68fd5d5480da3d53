"""Random batches for comparing losses with the oracle.

Small and nasty: holes in the mask, responses without a loss token, rubbish outside the mask, advantages of both signs
and exactly 0, log-ratios on both sides of every clip, and single tokens whose ratio overflows.
"""

import math
from functools import cache
from random import Random

from oracle_batch import Batch, Grid

RUBBISH = (math.nan, math.inf, -math.inf, 1e6, -1e6, 0.0)
EXTREME_LOG_RATIOS = (30.0, -30.0, 1e3, -1e3)


def random_mask(rng: Random, num_tokens: int) -> list[bool]:
    """Full, with holes, a shorter run, or empty."""
    kind = rng.choice(("full", "holes", "holes", "run", "run", "empty"))
    start, end = sorted(rng.randint(0, num_tokens) for _ in range(2))
    return [
        {"full": True, "holes": rng.random() < 0.6, "run": start <= t < end, "empty": False}[kind]
        for t in range(num_tokens)
    ]


def random_advantage(rng: Random) -> float:
    """Exactly 0 now and then, else of either sign."""
    return 0.0 if rng.random() < 0.15 else rng.choice((-1.0, 1.0)) * rng.uniform(0.05, 2.5)


def random_batch(rng: Random, token_advantages: bool = False, extreme: bool = True) -> Batch:
    """One micro-batch; at most one token of a response is extreme, so that extremes do not cancel in the mean."""
    num_responses, num_tokens = rng.randint(1, 6), rng.randint(1, 9)
    scale = rng.choice((0.5, 10 ** rng.uniform(-4, math.log10(0.5))))
    mask = [random_mask(rng, num_tokens) for _ in range(num_responses)]

    def grid(of_token: Grid) -> Grid:
        return [
            [x if is_loss else rng.choice(RUBBISH) for x, is_loss in zip(xs, row, strict=True)]
            for xs, row in zip(of_token, mask, strict=True)
        ]

    old = [[-rng.uniform(0.01, 4) for _ in row] for row in mask]
    log_ratios = []
    for _ in mask:
        drift = rng.uniform(-2, 2) * scale
        log_ratios.append([drift + rng.uniform(-1, 1) * scale for _ in range(num_tokens)])
        if extreme and rng.random() < 0.25:
            log_ratios[-1][rng.randrange(num_tokens)] = rng.choice(EXTREME_LOG_RATIOS)
    log_probs = [[o + x for o, x in zip(os, xs, strict=True)] for os, xs in zip(old, log_ratios, strict=True)]
    gap = 10 ** rng.uniform(-4, -1)
    sampler = [[o + rng.uniform(-1, 1) * gap for o in os] for os in old]
    advantages: Grid | list[float] = (
        grid([[random_advantage(rng) for _ in row] for row in mask])
        if token_advantages
        else [random_advantage(rng) for _ in mask]
    )
    tensors = grid(log_probs), grid(old), grid(sampler)
    return Batch(*tensors, advantages, mask, groups=[rng.randrange(2) for _ in mask])


def random_weights(rng: Random, batch: Batch, per_token: bool) -> Grid | list[float]:
    """Correction weights: some 0, some 1, some between 0 and 2; rubbish outside the mask."""

    def weight() -> float:
        return rng.choice((0.0, 1.0, rng.uniform(0, 2)))

    if not per_token:
        return [weight() for _ in batch.mask]
    return [[weight() if is_loss else rng.choice(RUBBISH) for is_loss in row] for row in batch.mask]


@cache
def seeded_batches(num: int = 300, token_advantages: bool = False, extreme: bool = True) -> list[Batch]:
    """The same batches on every run; read them only."""
    return [random_batch(Random(seed), token_advantages, extreme) for seed in range(num)]
