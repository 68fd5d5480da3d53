"""The ratio/*, kl/old_*, entropy and weight/* metrics of an update: by hand, and against plain loops.

B = responses, T = token positions
"""

import math

import pytest
import torch
from cases import seeded_batches
from oracle import ORACLES
from tensors import Case, run
from torch import Tensor

from gspo_cli.algorithms import grpo, loss_from_tensors
from gspo_cli.algorithms.metrics import ratio_metrics, spread
from gspo_cli.training.step.metrics import Accumulator

NAN = math.nan


def measured(name: str, case: Case, entropy_BT: Tensor | None = None) -> dict[str, float | None]:
    """The metrics' values after the one division."""
    result, metrics = run(name, case), Accumulator()
    entropy_BT = torch.ones_like(case.old_BT) if entropy_BT is None else entropy_BT
    metrics.add(ratio_metrics(case.log_probs_BT, case.old_BT, entropy_BT, case.mask_BT, result.output))
    return metrics.result().values


def test_by_hand() -> None:
    # log-ratios log 2 and 0 | log 4; log s = log 2 / 2 | 2 log 2, so s = sqrt 2 | 4
    two = math.log(2)
    mask_BT = torch.tensor([[True, True, False], [False, True, False], [False, False, False]])
    log_ratio_BT = torch.tensor([[two, 0, NAN], [NAN, 2 * two, NAN], [NAN] * 3], dtype=torch.float64)
    case = Case(log_ratio_BT, torch.zeros(3, 3, dtype=torch.float64), -torch.ones(3, dtype=torch.float64), mask_BT)
    values = measured("grpo", case, torch.tensor([[1.0, 2.0, NAN], [NAN, 6.0, NAN], [NAN] * 3]))
    # log w: 1, 0, 2 (times log 2), mean 1, deviation 1; log s: 1/2, 2, mean 5/4, deviation 1.5 / sqrt 2
    expected = {
        "entropy/mean": 3.0,
        "ratio/token_log_mean": two,
        "ratio/token_log_std": two,
        "ratio/token_log_absmax": 2 * two,
        "ratio/seq_log_mean": 1.25 * two,
        "ratio/seq_log_std": 1.5 * two / math.sqrt(2),
        "ratio/seq_min": math.sqrt(2),
        "ratio/seq_max": 4.0,
        "ratio/saturated_frac": 0.0,
        # Var_t = (log 2 / 2)^2 in the first response, 0 in the second
        "ratio/within_seq_log_var": (two / 2) ** 2 / 2,
        # k1 = o - l; k3 = w - 1 - log w: (2 - 1 - log 2) + 0 + (4 - 1 - 2 log 2), over 3
        "kl/old_k1": -two,
        "kl/old_k3": (4 - 3 * two) / 3,
        # grpo's weights 2/2 and 1/2 of the first response: mean 3/4, deviation 1/4; the second has one
        "weight/within_seq_cv": (1 / 3) / 2,
    }
    assert values == pytest.approx(expected, rel=1e-12)


def test_random_cases_against_loops() -> None:
    for batch in seeded_batches(60, extreme=False):
        if not any(map(any, batch.mask)):
            continue
        tensors = (torch.tensor(x, dtype=torch.float64) for x in (batch.log_probs, batch.old, batch.advantages))
        values, expected = measured("grpo", Case(*tensors, torch.tensor(batch.mask))), ORACLES["grpo"](batch).metrics
        for metric in ("ratio/token_log_mean", "ratio/seq_log_mean", "ratio/within_seq_log_var"):
            numerator, denominator = expected[metric]
            assert values[metric] == pytest.approx(numerator / denominator, rel=1e-9, abs=1e-12)


def test_a_spread_keeps_its_digits() -> None:
    # log-ratios of 1e-4 around 1e6: a mean of squares minus a squared mean would have lost them
    values = 1e6 + torch.tensor([-1e-4, 0, 1e-4], dtype=torch.float64)
    squares = float(spread(values).squares)
    assert squares == pytest.approx(2e-8, rel=1e-3)


def test_extreme_sequence_ratios_stay_finite() -> None:
    mask, old = torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, 1)
    now = torch.tensor([[1e3], [-1e3]])
    output = loss_from_tensors(grpo, now, old, torch.tensor([1.0, -1.0]), mask, grpo.Params())
    found = ratio_metrics(now, old, torch.zeros(2, 1), mask, output)
    # saturated at 20 nats: e^20 and e^-20
    assert float(found["ratio/seq_max"][0]) == pytest.approx(math.exp(20.0))
    assert float(found["ratio/seq_min"][0]) == pytest.approx(math.exp(-20.0))
