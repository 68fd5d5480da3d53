"""The oracle against finite differences, so that agreeing with it means something.

Its advantages and modifiers have hand numbers through the package, which equals both (`test_signals.py`).
"""

from __future__ import annotations

import dataclasses
import math

import pytest
from cases import seeded_batches
from oracle import ORACLES
from oracle_batch import Batch

STEP = 1e-6


def moved(batch: Batch, i: int, t: int, by: float) -> Batch:
    log_probs = [list(row) for row in batch.log_probs]
    log_probs[i][t] += by
    return dataclasses.replace(batch, log_probs=log_probs)


@pytest.mark.parametrize("name", [name for name, oracle in ORACLES.items() if not oracle.detached])
def test_weight_is_the_slope_of_the_value(name: str) -> None:
    num_compared = 0
    for batch in seeded_batches(40, extreme=False):
        answer = ORACLES[name](batch)
        for i, positions in batch.responses():
            for t in positions:
                up, down = (ORACLES[name](moved(batch, i, t, by)) for by in (STEP, -STEP))
                if up.clipped == answer.clipped == down.clipped:
                    slope = -(up.numerator - down.numerator) / (2 * STEP)
                    assert slope == pytest.approx(answer.weight[i][t], rel=1e-6, abs=1e-7)
                    num_compared += 1
    assert num_compared > 300


@pytest.mark.parametrize("name", ["cispo", "minirl", "reinforce"])
def test_value_is_weight_times_log_prob(name: str) -> None:
    for batch in seeded_batches(40):
        answer = ORACLES[name](batch)
        terms = [answer.weight[i][t] * batch.log_probs[i][t] for i, positions in batch.responses() for t in positions]
        assert answer.numerator == pytest.approx(-math.fsum(terms), rel=1e-12, abs=1e-12)
