"""What a first try says about its rewards."""

import pytest

from gspo_cli.report.runs.signal import reward_sentence, signal_sentences


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


def test_no_batch_at_all() -> None:
    assert signal_sentences([], 2) == ["no rollout batch was finished, so there is nothing to say about a signal"]
