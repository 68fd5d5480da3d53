"""Metrics over micro-batches: what is merged and then divided is what one pass would have given."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo_cli.algorithms.metrics import spread
from gspo_cli.training.step.metrics import Accumulator
from gspo_cli.types import Extreme, Loads, Mean, Reduced, RootMean

NUMBERS = st.lists(st.lists(st.floats(-1, 1), min_size=1, max_size=5), min_size=1, max_size=4)


def merged(*parts: Reduced) -> float | None:
    """One metric over these micro-batches."""
    metrics = Accumulator()
    for part in parts:
        metrics.add({"x": part})
    return metrics.result().values["x"]


def one(number: float) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float64)


def test_a_mean_is_divided_once() -> None:
    # 1/1 and 1/3 are 2/4 together; the mean of both means would be 2/3
    assert merged(Mean(one(1), 1), Mean(one(1), 3)) == 0.5
    assert merged(RootMean(one(1), 1), RootMean(one(1), 3)) == math.sqrt(0.5)


def test_a_mean_over_nothing_has_no_value() -> None:
    assert merged(Mean(one(0), 0)) is None
    assert merged(Mean(one(0), 0), Mean(one(3), 2)) == 1.5


def test_extremes() -> None:
    assert merged(Extreme(one(-2), 1), Extreme(one(-5), 1)) == -2
    assert merged(Extreme(one(2), -1), Extreme(one(5), -1), Extreme(one(3), -1)) == 2


@settings(max_examples=50, deadline=None, database=None)
@given(parts=NUMBERS, offset=st.sampled_from((0.0, 1e6, -1e6)))
def test_a_deviation_survives_any_cut_and_a_large_mean(parts: list[list[float]], offset: float) -> None:
    tensors = [torch.tensor(part, dtype=torch.float64) + offset for part in parts]
    value, whole = merged(*(spread(t) for t in tensors)), torch.cat(tensors)
    if len(whole) == 1:
        assert value is None
    else:
        # numbers around 1e6 are known to 1e-10
        assert value == pytest.approx(float(whole.std()), abs=1e-8)


def test_empty_spreads_change_nothing() -> None:
    empty, values = spread(torch.zeros(0)), spread(torch.tensor([1.0, 3.0]))
    assert merged(empty, values) == merged(values, empty) == pytest.approx(math.sqrt(2))
    assert merged(empty) is None


def test_loads_add_up_before_their_imbalance_is_taken() -> None:
    # each half is (2 - 1) / 1 out of balance, both together are even
    halves = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    assert merged(*(Loads(half) for half in halves)) == 0
    assert merged(Loads(halves[0])) == 1


def test_counts_are_the_denominators() -> None:
    metrics = Accumulator()
    metrics.add({"a": Mean(one(1), 4), "b": Extreme(one(1), 1), "c": spread(torch.tensor([1.0, 2.0, 3.0]))})
    metrics.add({"a": Mean(one(1), 4)})
    assert metrics.result().counts == {"a": 8, "c": 3}
