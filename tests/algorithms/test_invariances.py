"""What must not change a loss: padding, its contents, the order and the cut of the rows; and what must show in it.

B = responses, T = token positions
"""

import math
from dataclasses import replace
from itertools import pairwise, product
from math import log1p

import pytest
import torch
from cases import RUBBISH
from hypothesis import given
from tensors import BANDS, HARD_CLIP, SEEDS, Case, drawn, fraction, one_token, random_case, run, same, with_band
from torch import Tensor

from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.types import Mean

EVERY = pytest.mark.parametrize("name", list(ALGORITHMS))


def case_for(name: str, seed: int) -> Case:
    """Ratios on both sides of the algorithm's clip range."""
    clip = getattr(ALGORITHMS[name].Params(), "clip", None)
    return random_case(seed, 0.4 if clip is None else min(0.4, 3 * clip.high))


def widened(case: Case, left: int, right: int, filling: float) -> Case:
    """More columns on either side, none of them loss tokens."""

    def wide(values_BT: Tensor, value: float) -> Tensor:
        return torch.nn.functional.pad(values_BT, (left, right), value=value)

    mask_BT = wide(case.mask_BT.double(), 0.0).bool()
    return replace(
        case, log_probs_BT=wide(case.log_probs_BT, filling), old_BT=wide(case.old_BT, filling), mask_BT=mask_BT
    )


@EVERY
@drawn
@given(seed=SEEDS)
def test_padding_left_and_right(name: str, seed: int) -> None:
    case, left = case_for(name, seed), 2
    plain, wide = run(name, case), run(name, widened(case, left, right=5, filling=math.nan))
    same(wide.objective, plain.objective)
    same(wide.gradient_BT[:, left : left + case.mask_BT.shape[1]], plain.gradient_BT)
    assert (wide.gradient_BT[:, :left] == 0).all() and (
        wide.gradient_BT[:, plain.gradient_BT.shape[1] + left :] == 0
    ).all()
    assert {k: fraction(wide, k) for k in wide.output.metrics} == pytest.approx(
        {k: fraction(plain, k) for k in plain.output.metrics}, rel=1e-12
    )


@EVERY
def test_nothing_outside_the_mask_is_read(name: str) -> None:
    case = case_for(name, 7)
    clean = run(name, case)
    assert not case.mask_BT.all()
    for rubbish in RUBBISH:
        log_probs_BT, old_BT = (x.masked_fill(~case.mask_BT, rubbish) for x in (case.log_probs_BT, case.old_BT))
        other = run(name, replace(case, log_probs_BT=log_probs_BT, old_BT=old_BT))
        assert torch.equal(other.objective, clean.objective), rubbish
        assert torch.equal(other.gradient_BT, clean.gradient_BT), rubbish
        assert torch.equal(other.output.gradient_weight_BT, clean.output.gradient_weight_BT), rubbish


@EVERY
@drawn
@given(seed=SEEDS)
def test_numerators_denominators_and_metrics_add_up_over_rows(name: str, seed: int) -> None:
    case, cuts = case_for(name, seed), (0, 4, 4, 8) if ALGORITHMS[name].WHOLE_GROUPS else (0, 1, 1, 6, 8)
    case.mask_BT[2] = False  # a response without tokens counts nowhere
    whole = run(name, case).output
    parts = [run(name, case.rows(slice(a, b))).output for a, b in pairwise(cuts)]
    torch.testing.assert_close(
        torch.stack([p.loss_numerator for p in parts]).sum().detach(), whole.loss_numerator.detach(),
        rtol=1e-12, atol=1e-12,
        msg=lambda text: f"{text}\nA loss that compares responses of a group sets WHOLE_GROUPS = True.",
    )  # fmt: skip
    assert sum(int(p.denominator) for p in parts) == int(whole.denominator)
    same(torch.cat([p.gradient_weight_BT for p in parts]), whole.gradient_weight_BT)
    for metric, value in whole.metrics.items():
        assert isinstance(value, Mean)
        numbers = [p.metrics[metric] for p in parts]
        assert sum(float(x.numerator) for x in numbers) == pytest.approx(float(value.numerator), rel=1e-12), metric
        assert sum(float(x.denominator) for x in numbers) == float(value.denominator), metric


@EVERY
def test_a_response_without_tokens_counts_nowhere(name: str) -> None:
    case = case_for(name, 3)
    case.mask_BT[0] = False
    same(run(name, case).objective, run(name, case.rows(slice(1, None))).objective)
    assert (run(name, case).gradient_BT[0] == 0).all()


@EVERY
def test_extreme_ratios_are_finite(name: str) -> None:
    for log_ratio, advantage in product((1e3, -1e3, 1e4, -1e4), (1.0, -1.0, 0.0)):
        result = run(name, one_token(log_ratio, advantage))
        assert result.objective.isfinite() and result.gradient_BT.isfinite().all(), (log_ratio, advantage)
        if advantage == 0 and not ALGORITHMS[name].EVERY_ROW:
            assert float(result.objective) == float(result.gradient_BT) == 0, log_ratio


@EVERY
def test_a_nan_in_a_loss_token_is_not_hidden(name: str) -> None:
    # the update is refused because of it; a NaN turned into a number would be trained on
    case = case_for(name, 5)
    log_probs_BT = case.log_probs_BT.clone()
    log_probs_BT[tuple(case.mask_BT.nonzero()[0])] = math.nan
    assert not run(name, replace(case, log_probs_BT=log_probs_BT)).objective.isfinite()


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if ALGORITHMS[name].HAS_RATIO])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(name: str, dtype: torch.dtype) -> None:
    case = case_for(name, 0)
    with pytest.raises(AssertionError, match="float32"):
        run(name, replace(case, log_probs_BT=case.log_probs_BT.to(dtype), old_BT=case.old_BT.to(dtype)))


@pytest.mark.parametrize("name", HARD_CLIP)
def test_float32_is_enough_for_the_papers_range(name: str) -> None:
    # 3.9e-4 and 4.1e-4, -2.9e-4 and -3.1e-4 stand on either side of the edges
    params = with_band(name, BANDS[0])
    for change, advantage, clipped in ((3.9e-4, 1, 0), (4.1e-4, 1, 1), (-2.9e-4, -1, 0), (-3.1e-4, -1, 1)):
        result = run(name, one_token(log1p(change), advantage, torch.float32), params)
        assert result.objective.dtype == torch.float32
        assert fraction(result, "clip/token_frac") == clipped


@EVERY
@drawn
@given(seed=SEEDS)
def test_float32_agrees_with_float64(name: str, seed: int) -> None:
    case = case_for(name, seed)
    low, high = (
        replace(case, log_probs_BT=to(case.log_probs_BT), old_BT=to(case.old_BT), advantages=to(case.advantages))
        for to in (Tensor.float, lambda values: values.float().double())
    )
    single, double = run(name, low), run(name, high)
    # a few rounding errors of 6e-8 on terms of size 1 to 10
    assert float(single.objective) == pytest.approx(float(double.objective), rel=2e-6, abs=2e-6)
    if single.output.clipped_BT is None or torch.equal(single.output.clipped_BT, double.output.clipped_BT):
        torch.testing.assert_close(single.gradient_BT.double(), double.gradient_BT, rtol=2e-6, atol=2e-6)
