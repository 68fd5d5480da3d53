"""The clip range that a run proposes for the spread and length at hand."""

from __future__ import annotations

import math

import pytest

from gspo_cli.stats.clip_share import share_discarded
from gspo_cli.training.step.clip_advice import clip_advice
from gspo_cli.types import StepMetrics


def line(std: float, share: float | None, name: str = "seq") -> StepMetrics:
    return StepMetrics({f"ratio/{name}_log_std": std, f"clip/{name}_frac": share})


def test_a_range_that_discards_too_much_gets_a_proposal() -> None:
    advice = clip_advice([line(9.0, 1.0), line(0.003, 0.5), line(0.004, 0.4)], "sequence", 25.0)
    assert advice is not None
    assert advice.log_std == pytest.approx(math.sqrt((9 + 16) / 2) * 1e-3)  # the first mini-batch does not count
    assert advice.discarded == pytest.approx(0.45)
    assert share_discarded(advice.low, advice.high, advice.log_std) == pytest.approx(0.15)
    assert advice.by_length == pytest.approx(6e-3)  # 3e-4 sqrt(10,000 / 25)
    sentence = advice.sentence(25.0)
    assert sentence is not None and "45% of the responses" in sentence and "scaled to 25 tokens, is 0.006" in sentence


def test_a_range_that_fits_says_nothing() -> None:
    advice = clip_advice([line(0.0, 0.0, "token"), line(0.1, 0.02, "token")], "token", 25.0)
    assert advice is not None and advice.by_length is None and advice.sentence(25.0) is None


@pytest.mark.parametrize(
    "lines", [[line(0.1, 0.1)], [line(0.1, 0.1), line(0.1, None)], [line(0.1, 0.1), line(0.0, 0.0)]]
)
def test_without_off_policy_ratios_or_a_clip_there_is_none(lines: list[StepMetrics]) -> None:
    assert clip_advice(lines, "sequence", 20.0) is None
