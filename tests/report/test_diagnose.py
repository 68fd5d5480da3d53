"""What a run and a first try say about their rewards: each cause is found beyond its threshold, and only there."""

from pathlib import Path
from typing import Any

import pytest

from gspo_cli.config import Recipe
from gspo_cli.report.runs.diagnose import CAUSES, diagnose
from gspo_cli.report.runs.signal import reward_sentence, signal_sentences
from gspo_cli.training.guards import SignalWatch

CONFIG: dict[str, Any] = {
    "algo": {"name": "gspo", "clip": {"low": 3e-4, "high": 4e-4}, "kl": {"coef": 0.1}},
    "train": {"minibatches": 4},
    "rollout": {},
}
HEALTHY = {
    "length/truncated_frac": 0.05, "group/zero_std_frac": 0.3, "mismatch/token_floor": 0.001, "clip/token_frac": 0.15,
    "ratio/outside_frac": 0.2, "kl/ref_k3": 0.01, "adv/abs_mean": 0.8, "ratio/token_log_std": 0.01, "kl/old_k3": 0.001,
    "entropy/mean": 0.5,
}  # fmt: skip
ILL: dict[str, dict[str, Any]] = {
    "truncated": {"length/truncated_frac": 0.25},
    "no_signal": {"group/zero_std_frac": 0.8},
    "engine_mismatch": {"mismatch/token_floor": 0.1},
    "clipped_always": {"clip/token_frac": 0.5},
    "clipped_never": {"ratio/outside_frac": 0.0},
    "kl": {"kl/ref_k3": 8.0},  # 0.1 x 8 / 0.8 = 1
    "lr_low": {"ratio/token_log_std": 9.9e-5},
    "lr_high": {"kl/old_k3": 0.1},
    "entropy": {"entropy/mean": 0.049},
}
"""A value just beyond the threshold of each cause that a metric shows."""


def found(
    means: dict[str, float] = HEALTHY,
    config: dict[str, Any] = CONFIG,
    unscored: float | None = 0.0,
    unanswered: float | None = 0.2,
) -> list[str]:
    """The causes found."""
    return [one.cause.name for one in diagnose(means, config, unscored, unanswered) if one.found]


def test_a_healthy_run_has_none() -> None:
    assert found() == []
    assert found(means={}, unscored=None, unanswered=None) == []  # nothing is known, so nothing is claimed


@pytest.mark.parametrize("name", ILL)
def test_each_metric_shows_its_cause_and_no_other(name: str) -> None:
    assert found(means=HEALTHY | ILL[name]) == [name]


def test_a_clip_that_takes_all_of_the_little_there_is_is_found() -> None:
    """20 % of all tokens are half of those with an advantage, where six responses of ten have none."""
    assert found(means=HEALTHY | {"clip/token_frac": 0.2, "clip/token_frac_active": 0.5}) == ["clipped_always"]


def test_a_range_in_nats_is_a_clip_range_too() -> None:
    gmpo = CONFIG | {"algo": {"name": "gmpo", "log_clip_low": 0.4, "log_clip_high": 0.4}}
    assert found(config=gmpo, means=HEALTHY | {"ratio/outside_frac": 0.0}) == ["clipped_never"]


def test_the_stored_responses_show_the_other_two() -> None:
    assert found(unscored=0.01) == ["grader_errors"]
    assert found(unanswered=0.5) == ["format"]
    assert {*ILL, "grader_errors", "format"} == {cause.name for cause in CAUSES}


def test_a_clip_that_cannot_bind_is_no_cause() -> None:
    on_policy = CONFIG | {"train": {"minibatches": 1}}
    still = HEALTHY | {"ratio/outside_frac": 0.0, "ratio/token_log_std": 0.0}
    assert found(means=still, config=on_policy) == []  # one mini-batch: every ratio is 1
    assert found(means=still, config=CONFIG | {"algo": {"name": "reinforce"}}) == ["lr_low"]


def test_a_run_warns_once_of_cut_responses_and_each_time_of_a_batch_without_update() -> None:
    said: list[str] = []
    recipe = Recipe.model_validate(
        {"name": "r", "model": {"path": "m"}, "rollout": {"prompts": 4, "samples": 4, "max_new_tokens": 96}}
    )
    watch = SignalWatch(recipe, lambda event: said.append(event.text))
    for step in (1, 2):
        watch.observe(step, {"update/applied": 1.0, "length/truncated_frac": 0.5})
    assert len(said) == 1 and "8 of 16" in said[0] and "rollout.max_new_tokens" in said[0]
    for step, cut in ((3, 0.875), (4, 0.25)):
        watch.observe(step, {"update/applied": 0.0} | batch(1.0, 1.0, cut))
    many, few = said[1:]
    assert "14 of 16 responses were cut off at 96 tokens" in many and "raise rollout.max_new_tokens" in many
    assert few.startswith("no update from rollout batch 4: all responses") and "max_new_tokens" not in few


def test_the_page_has_the_table_of_the_program() -> None:
    page = (Path(__file__).parents[2] / "docs" / "watching.md").read_text(encoding="utf-8")
    for cause in CAUSES:
        metric = cause.metric if " " in cause.metric else f"`{cause.metric}`"
        assert f"| {cause.what} | {metric} | {cause.threshold} | {cause.do} |" in page, cause.name


def batch(reward: float, flat: float, cut: float = 0.0) -> dict[str, float | None]:
    return {"reward/mean": reward, "group/zero_std_frac": flat, "length/truncated_frac": cut}


def test_no_signal_is_said_with_what_to_do() -> None:
    [signal, cut] = signal_sentences([batch(0.0, 1.0, 0.875)] * 4, num_groups=2)
    assert signal.startswith("no signal: in all 8 groups every response got reward 0")
    assert cut == "88% of the responses were cut at the length limit: raise rollout.max_new_tokens"


def test_a_signal_is_counted_in_groups() -> None:
    found = signal_sentences([batch(0.25, 0.5), batch(0.5, 0.0), batch(0.25, 1.0), batch(0.25, 0.5)], num_groups=2)
    assert found[0].startswith("signal: in 4 of 8 groups")
    assert len(found) == 2
    assert len(signal_sentences([], num_groups=2)) == 1  # no batch was finished: nothing can be said


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ([0.1, 0.9, 0.2], "3 batches are too few"),
        # means 0.15 and 0.3; variances 0.005 and 0.02: 2 sqrt(0.025 / 2) = 0.224
        ([0.1, 0.2, 0.2, 0.4], "from 0.150 in the first 2 batches to 0.300 in the last (noise: 0.224); that is no ev"),
        ([0.1, 0.2, 0.7, 0.8], "the reward moved from 0.150 in the first 2 batches to 0.750"),
        ([0.5, 0.5, 0.5, 0.5], "no evidence of learning"),
    ],
)
def test_a_change_must_stand_out_from_the_noise(rewards: list[float], said: str) -> None:
    assert said in reward_sentence(rewards)
