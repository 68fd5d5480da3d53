"""The clip range that a run proposes for the spread and length at hand."""

import math

import pytest
import torch

from gspo_cli.algorithms import ALGORITHMS, LossInputs
from gspo_cli.algorithms.clip import Clip
from gspo_cli.stats.clip_share import measured_share, range_for, share_discarded
from gspo_cli.training.step.clip_advice import clip_advice
from gspo_cli.training.step.metrics import Accumulator
from gspo_cli.types import StepMetrics


def line(std: float, share: float | None, name: str = "seq") -> StepMetrics:
    return StepMetrics({f"ratio/{name}_log_std": std, f"clip/{name}_frac": share})


def test_a_range_that_discards_too_much_gets_a_proposal() -> None:
    advice = clip_advice([line(9.0, 1.0), line(0.003, 0.5), line(0.004, 0.4)], "sequence", 25.0)
    assert advice is not None
    assert advice.log_std == pytest.approx(math.sqrt((9 + 16) / 2) * 1e-3)  # the first mini-batch does not count
    assert advice.discarded == pytest.approx(0.45)
    assert share_discarded(*advice.proposed, advice.log_std) == pytest.approx(0.15)
    assert advice.scaled_by_length == pytest.approx(6e-3)  # 3e-4 sqrt(10,000 / 25)
    sentence = advice.sentence()
    assert sentence is not None and "45% of the responses with an advantage" in sentence
    assert "scaled to 25 tokens, is 0.006" in sentence


@pytest.mark.parametrize(
    ("tail", "dual_clip", "advised"), [(0.24, None, True), (0.24, 3.0, False), (0.02, None, False)]
)
def test_heavy_ratios_call_for_a_dual_clip(tail: float, dual_clip: float | None, advised: bool) -> None:
    off_policy = line(0.5, 0.03, "token")
    off_policy.values["weight/negative_tail_frac"] = tail
    algo = {"name": "grpo", "clip": {"low": 0.2, "high": 0.27}, "dual_clip": dual_clip}
    advice = clip_advice([off_policy, off_policy], "token", 25.0, algo)
    sentence = advice and advice.sentence()
    assert bool(sentence) == advised and (not sentence or ("24%" in sentence and "algo.dual_clip = 3" in sentence))


def test_responses_without_an_advantage_have_no_part() -> None:
    """60 % have none, so 18 % of all responses are 45 % of those that a clip can discard: by hand, 0.18 / 0.4."""
    skipped = [line(0.0, 0.0), line(0.1, 0.18)]
    for one in skipped:
        one.values["update/skipped_rows_frac"] = 0.6
    advice = clip_advice(skipped, "sequence", 25.0)
    assert advice is not None and advice.discarded == pytest.approx(0.45) and advice.sentence() is not None
    kept = line(0.1, 0.18)  # a KL penalty keeps the rows; their tokens say how many had an advantage
    kept.values |= {"clip/token_frac": 0.18, "clip/token_frac_active": 0.45, "update/skipped_rows_frac": 0.0}
    advice = clip_advice([line(0.0, 0.0), kept], "sequence", 25.0)
    assert advice is not None and advice.discarded == pytest.approx(0.45)
    tokens = line(0.1, 0.18, "token")
    tokens.values["clip/token_frac_active"] = 0.45
    advice = clip_advice([tokens, tokens], "token", 25.0)
    assert advice is not None and advice.discarded == pytest.approx(0.45)


@pytest.mark.parametrize("active", [1.0, 0.4, 0.1])
def test_the_proposed_range_discards_its_share_of_what_the_metrics_count(active: float) -> None:
    """Through the loss itself: 4,000 responses of one token, normal log-ratios, some with an advantage."""
    generator = torch.Generator().manual_seed(0)
    log_ratio_BT = 0.2 * torch.randn(4000, 1, generator=generator, dtype=torch.float64)
    sign_B = torch.where(torch.rand(4000, generator=generator) < 0.5, 1.0, -1.0)
    advantages_B = torch.where(torch.rand(4000, generator=generator) < active, sign_B, 0.0).double()
    low, high = range_for(0.15, 0.2)
    mask_BT = torch.ones_like(log_ratio_BT, dtype=torch.bool)
    inputs = LossInputs(log_ratio_BT, torch.zeros_like(log_ratio_BT), advantages_B, mask_BT)
    output = ALGORITHMS["gspo"].loss(inputs, ALGORITHMS["gspo"].Params(Clip(low, high)))
    metrics = Accumulator()
    metrics.add(output.metrics)
    for unit in ("sequence", "token"):
        share = measured_share(unit, metrics.result().values)
        assert share == pytest.approx(0.15, abs=4 * (0.15 * 0.85 / (4000 * active)) ** 0.5)


@pytest.mark.parametrize(
    "lines", [[line(0.1, 0.1)], [line(0.1, 0.1), line(0.1, None)], [line(0.1, 0.1), line(0.0, 0.0)]]
)
def test_without_off_policy_ratios_or_a_clip_there_is_none(lines: list[StepMetrics]) -> None:
    assert clip_advice(lines, "sequence", 20.0) is None
