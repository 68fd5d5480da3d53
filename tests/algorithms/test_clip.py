"""Who is clipped: the four corners, the edges, the two sides, and clip fractions against autograd's exact zeros.

B = responses, T = token positions
"""

import math
from dataclasses import replace
from math import log1p
from typing import Any

import pytest
import torch
from hypothesis import given
from oracle import ORACLES
from tensors import (
    BANDS,
    CLIPPING,
    HARD_CLIP,
    SEEDS,
    drawn,
    fraction,
    one_token,
    random_case,
    run,
    with_band,
    with_parameter,
)

from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.algorithms.clip import Clip

NAMES = pytest.mark.parametrize("name", HARD_CLIP)
BAND = pytest.mark.parametrize("band", BANDS)
DUAL = pytest.mark.parametrize("name", with_parameter("dual_clip"))


def edges(name: str, band: Clip) -> tuple[Any, float, float]:
    """Parameters and the log-ratio's edges; gmpo's are plain nats."""
    if name not in HARD_CLIP:
        return ALGORITHMS[name].Params(log_clip_low=0.3, log_clip_high=0.4), -0.3, 0.4
    return with_band(name, band), log1p(-band.low), log1p(band.high)


@BAND
@pytest.mark.parametrize("name", CLIPPING)
def test_two_corners_lose_their_gradient_and_two_keep_it(name: str, band: Clip) -> None:
    params, low, high = edges(name, band)
    for log_ratio, advantage, clipped in (
        (high * 1.01, 1.0, True),
        (low * 1.01, -1.0, True),
        (low * 1.01, 1.0, False),
        (high * 1.01, -1.0, False),
        (high * 0.99, 1.0, False),
        (low * 0.99, -1.0, False),
    ):
        result = run(name, one_token(log_ratio, advantage), params)
        assert (float(result.gradient_BT) == 0) == clipped, (log_ratio, advantage)
        assert fraction(result, "clip/token_frac") == fraction(result, "clip/seq_frac") == clipped
        assert fraction(result, "clip/low_frac") == (clipped and advantage < 0)
        assert fraction(result, "clip/high_frac") == (clipped and advantage > 0)
        assert fraction(result, "ratio/outside_frac") == (not low < log_ratio < high)


@BAND
@pytest.mark.parametrize("name", CLIPPING)
def test_a_ratio_on_the_edge_keeps_its_gradient(name: str, band: Clip) -> None:
    params, low, high = edges(name, band)
    for edge, advantage in ((high, 1.0), (low, -1.0)):
        beyond = math.nextafter(edge, math.inf * advantage)
        assert float(run(name, one_token(edge, advantage), params).gradient_BT) != 0
        assert fraction(run(name, one_token(edge, advantage), params), "ratio/outside_frac") == 0
        assert float(run(name, one_token(beyond, advantage), params).gradient_BT) == 0


@BAND
@NAMES
def test_the_two_sides_of_the_range_are_not_exchanged(name: str, band: Clip) -> None:
    # in both ranges the upper side is the wider one: between them A > 0 keeps, A < 0 loses its gradient
    middle = (band.low + band.high) / 2
    swapped = with_band(name, Clip(low=band.high, high=band.low))
    for log_ratio, advantage, clipped in ((log1p(middle), 1.0, False), (log1p(-middle), -1.0, True)):
        case = one_token(log_ratio, advantage)
        assert (float(run(name, case, with_band(name, band)).gradient_BT) == 0) == clipped
        assert (float(run(name, case, swapped).gradient_BT) == 0) != clipped


@BAND
@pytest.mark.parametrize("name", [name for name in HARD_CLIP if not ORACLES[name].detached or name == "gspo_token"])
def test_the_value_is_the_smaller_of_both_products(name: str, band: Clip) -> None:
    # J = min(x A, clip(x) A) for one response of one token, over max_length in dr_grpo
    params, low, high = edges(name, band)
    scale = getattr(params, "max_length", 1)
    for log_ratio in (2 * low, 0.5 * low, 0.0, 0.5 * high, 2 * high):
        x = math.exp(log_ratio)
        for advantage in (2.0, -2.0):
            expected = min(x * advantage, min(max(x, 1 - band.low), 1 + band.high) * advantage)
            actual = float(run(name, one_token(log_ratio, advantage), params).objective) * scale
            assert actual == pytest.approx(expected, rel=1e-12)


@BAND
@pytest.mark.parametrize("name", CLIPPING)
@drawn
@given(seed=SEEDS)
def test_clip_fractions_are_autograds_exact_zeros(name: str, band: Clip, seed: int) -> None:
    case = random_case(seed, spread=3 * band.high)
    advantages = case.advantages.clone()
    advantages[0] = 0.0  # a token without advantage has no gradient either, and is not clipped
    case = replace(case, advantages=advantages)
    result = run(name, case, edges(name, band)[0])
    active_BT = case.mask_BT & (advantages != 0)[:, None]
    zeros_BT = (result.gradient_BT == 0) & active_BT
    assert result.output.clipped_BT is not None
    assert torch.equal(result.output.clipped_BT, zeros_BT)
    tokens = int(case.mask_BT.sum())
    assert fraction(result, "clip/token_frac_active") == int(zeros_BT.sum()) / int(active_BT.sum())
    assert fraction(result, "clip/token_frac") == int(zeros_BT.sum()) / tokens
    both = fraction(result, "clip/low_frac") + fraction(result, "clip/high_frac")
    assert both == pytest.approx(fraction(result, "clip/token_frac"), rel=1e-12)
    some_B, all_B = zeros_BT.any(-1), (zeros_BT | ~case.mask_BT).all(-1)
    assert fraction(result, "clip/seq_any_frac") == int(some_B.sum()) / len(some_B)
    assert fraction(result, "clip/seq_frac") == int(all_B.sum()) / len(all_B)


@DUAL
def test_dual_clip_bounds_the_open_side(name: str) -> None:
    # A < 0 and ratio > c: value c A, no gradient; counted apart from the clip. On the edge the gradient is kept.
    params = ALGORITHMS[name].Params(dual_clip=3.0)
    scale = getattr(params, "max_length", 1)
    beyond = run(name, one_token(math.log(3.0) + 1e-9, -2.0), params)
    assert float(beyond.gradient_BT) == 0
    assert float(beyond.objective) * scale == pytest.approx(-6.0, rel=1e-12)
    assert fraction(beyond, "clip/dual_frac") == 1
    assert fraction(beyond, "clip/token_frac") == fraction(beyond, "clip/token_frac_active") == 0
    for log_ratio, advantage in ((math.log(3.0), -2.0), (math.log(3.0) - 1e-9, -2.0), (math.log(3.0) + 1e-9, 2.0)):
        assert fraction(run(name, one_token(log_ratio, advantage), params), "clip/dual_frac") == 0
    assert float(run(name, one_token(math.log(3.0), -2.0), params).gradient_BT) != 0
