"""Effective share, second moments, tails and the clip by sign and length of an update, worked out by hand.

B = responses, T = token positions
"""

import math

import numpy as np
import pytest
import torch

from gspo_cli.algorithms import LossInputs, gspo
from gspo_cli.stats.pareto import LONGEST, pareto_k
from gspo_cli.training.step.metrics import Accumulator, merge_ranks
from gspo_cli.training.step.weight_health import clip_metrics, health_metrics, length_edges, negative_tail, tail
from gspo_cli.types import MicroBatch, MiniBatch


def values(metrics: dict) -> dict[str, float | None]:
    accumulator = Accumulator()
    accumulator.add(metrics)
    return accumulator.result().values


def test_by_hand() -> None:
    # GSPO's log-ratios: response 0 (A = 1) log w = 2x, 0: log s = x = log 1.1; response 1 (A = -1) log w = x: log s = x
    x = math.log(1.1)
    mask_BT = torch.tensor([[True, True], [True, False]])
    old_BT = torch.zeros(2, 2, dtype=torch.float64)
    log_probs_BT = torch.tensor([[2 * x, 0.0], [x, math.nan]], dtype=torch.float64)
    advantages = torch.tensor([1.0, -1.0], dtype=torch.float64)
    nothing = torch.empty(0, dtype=torch.int64)
    micro = MicroBatch(mask_BT.long(), mask_BT, advantages, old_BT, nothing, nothing, torch.tensor([0, 1, 2]), nothing)
    micro.old_log_probs_BT = old_BT
    params = gspo.Params()
    output, at_one = (gspo.loss(LossInputs(now, old_BT, advantages, mask_BT), params) for now in (log_probs_BT, old_BT))
    edges = length_edges(MiniBatch([micro], mask_BT, 0))
    assert edges == (1.25, 1.5, 1.75)
    found = values(health_metrics(log_probs_BT, micro, output, at_one.gradient_weight_BT, edges))
    assert found == {
        "ratio/token_log_square": pytest.approx(5 * x * x / 3),
        "ratio/seq_log_square": pytest.approx(x * x),
        "ratio/token_pareto_k": None,  # three tokens
        "ratio/seq_pareto_k": None,
        # of three tokens the two of the clipped response weigh 0, the third 1.1: 1.1^2 / (3 * 1.1^2)
        "weight/effective_frac": pytest.approx(1 / 3),
        "weight/negative_tail_frac": 0.0,
        "clip/pos_frac": 1.0,  # 1.1 is above the range, so A > 0 clips
        "clip/neg_frac": 0.0,  # and A < 0 does not
        "clip/length_q1_frac": 0.0,
        "clip/length_q2_frac": None,
        "clip/length_q3_frac": None,
        "clip/length_q4_frac": 1.0,
    }


def test_the_tail_that_only_a_dual_clip_bounds() -> None:
    """Ratios 5, 5, 2 and 4 by hand: only the negative ones above 3 count, 5 + 4 of 5 + 5 + 2 + 4."""
    at_one_BT = torch.tensor([[1.0, -1.0], [-1.0, -1.0]])
    weight_BT = at_one_BT * torch.tensor([[5.0, 5.0], [2.0, 4.0]])
    assert values({"tail": negative_tail(weight_BT, at_one_BT)}) == {"tail": pytest.approx(9 / 16)}


def test_each_quarter_by_length() -> None:
    # lengths 1, 2, 3, 4 with 0, 1, 2, 3 clipped tokens; the second has no advantage and is left out
    mask_BT = torch.arange(4) <= torch.arange(4)[:, None]
    clipped_BT = torch.arange(4) < torch.arange(4)[:, None]
    clipped_BT[1] = False  # a clip needs an advantage
    found = values(clip_metrics(clipped_BT, torch.tensor([-1.0, 0.0, -1.0, 2.0]), mask_BT, (1.75, 2.5, 3.25)))
    quarters = [found[f"clip/length_q{q}_frac"] for q in (1, 2, 3, 4)]
    assert quarters == [0.0, None, pytest.approx(2 / 3), pytest.approx(3 / 4)]
    assert (found["clip/pos_frac"], found["clip/neg_frac"]) == (pytest.approx(3 / 4), pytest.approx(2 / 4))


class OtherRank:
    """Two ranks with equal metrics."""

    size = 2

    def all_gather(self, make):
        return [make(), make()]


@pytest.mark.parametrize("sigma", [0.3, 1.5])
def test_a_tail_is_the_same_however_it_is_split(sigma: float) -> None:
    draws = torch.from_numpy(np.random.default_rng(0).normal(0, sigma, 30_000))  # 3 sqrt(n) = 520
    whole, split = Accumulator(), Accumulator()
    whole.add({"k": tail(draws, len(draws))})
    for part in draws.split(7_000):
        split.add({"k": tail(part, torch.tensor(len(part)))})
    expected = pareto_k(draws.clamp(-20, 20).exp().numpy())
    assert whole.result().values["k"] == split.result().values["k"] == pytest.approx(expected, rel=1e-12)
    assert split.result().counts["k"] == len(draws)
    doubled = merge_ranks(split, OtherRank()).result()  # type: ignore[arg-type]
    assert doubled.values["k"] == pytest.approx(pareto_k(draws.repeat(2).exp().numpy()), rel=1e-12)


def test_a_long_tail_keeps_a_bounded_number_of_values() -> None:
    draws = torch.from_numpy(np.random.default_rng(1).normal(0, 1, 200_000))  # 3 sqrt(n) = 1,342
    kept = tail(draws, len(draws))
    assert kept.largest[0].numel() == LONGEST + 1
    assert values({"k": kept})["k"] == pytest.approx(pareto_k(draws.exp().numpy()), rel=1e-12)


@pytest.mark.parametrize("spread", [0.0, 1e-6])
def test_rounding_has_no_tail(spread: float) -> None:
    draws = spread * torch.from_numpy(np.random.default_rng(2).normal(0, 1, 1000))
    assert values({"k": tail(draws, 1000)})["k"] is None
    assert values({"k": tail(draws + 0.3, 1000)})["k"] is None
