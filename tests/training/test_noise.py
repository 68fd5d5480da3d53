"""Synthetic noise on the old policy's log-probabilities: its size, its independence of everything else, its place."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from program import Gspo, ok, strict_lines
from test_batches import cut, learner, rollout_batch
from test_update import WHOLE
from transformers import PreTrainedModel

from gspo_cli.config import NoiseConfig, Recipe
from gspo_cli.training.step.noise import RecordedNoise
from gspo_cli.training.step.update import record_old_policy, update
from gspo_cli.types import Sample


def response(length: int, index: int = 0) -> Sample:
    return Sample("p", index, 0, (5,) * length, (-0.1,) * length, "stop", 0)


@pytest.mark.parametrize("tail", ["normal", "student_t"])
def test_size_is_the_standard_deviation(tail: str) -> None:
    noise = RecordedNoise(0, 1, NoiseConfig(token=0.3, tail=tail))  # type: ignore[arg-type]
    drawn = noise.of(response(20_000))
    assert float(drawn.std()) == pytest.approx(0.3, rel=0.1)
    assert abs(float(drawn.mean())) < 0.02
    heavy = float((drawn / drawn.std()).pow(4).mean())
    assert heavy == pytest.approx(3, abs=0.3) if tail == "normal" else heavy > 6


def test_a_response_shares_its_own_part() -> None:
    drawn = [RecordedNoise(0, 1, NoiseConfig(token=0.0, response=0.5)).of(response(4, i)) for i in range(400)]
    assert all(torch.equal(d, d[:1].expand(4)) for d in drawn)
    assert float(torch.stack(drawn)[:, 0].std()) == pytest.approx(0.5, rel=0.15)


def test_it_depends_on_nothing_but_its_keys() -> None:
    noise = RecordedNoise(3, 7, NoiseConfig(token=0.3, response=0.1))
    assert torch.equal(noise.of(response(5)), noise.of(response(5)))
    # a longer response begins alike: the noise of a position does not depend on what follows
    assert torch.equal(noise.of(response(5)), noise.of(response(9))[:5])
    others = [replace(noise, seed=4).of(response(5)), replace(noise, step=8).of(response(5)), noise.of(response(5, 1))]
    assert not any(torch.equal(noise.of(response(5)), other) for other in others)


def test_ratios_are_off_by_it_before_any_update(tiny_moe: PreTrainedModel) -> None:
    who = learner(tiny_moe, "grpo")
    noise = RecordedNoise(0, 1, NoiseConfig(token=0.3))
    mini_batches = cut(rollout_batch(), replace(WHOLE, minibatches=2, noise=noise))
    record_old_policy(who, mini_batches)
    for index, mini in enumerate(mini_batches):
        values = update(who, mini, lr=0.0, first=index == 0).result().values
        assert values["ratio/token_log_std"] == pytest.approx(0.3, rel=0.25)
        for micro in mini.micro_batches:
            assert micro.noise_BT is not None and micro.trainer_log_probs_BT is not None
            assert not micro.noise_BT[~micro.mask_BT].any()
            # what mismatch/* compares stays clean
            assert torch.equal(micro.old_log_probs_BT, micro.trainer_log_probs_BT + micro.noise_BT)


@pytest.mark.parametrize(
    ("task", "tokens", "why"),
    [
        ({"terms": [8, 11]}, 64, "max_new_tokens = 64 would cut such answers; set it to 120"),
        ({"terms": [2, 2]}, 64, "at least 5"),
        ({"terms": [6, 5]}, 64, "the fewest at least 2"),
        ({"name": "gsm8k", "terms": [8, 11]}, 200, "the task is gsm8k"),
    ],
)
def test_rows_that_cannot_work_are_refused(task: dict[str, object], tokens: int, why: str) -> None:
    table = {"name": "x", "model": {"tiny": {}}, "task": task, "rollout": {"max_new_tokens": tokens}}
    with pytest.raises(ValueError, match=why):
        Recipe.model_validate(table)


@pytest.mark.parametrize(("replay", "says"), [("none", True), ("r2", False)])
def test_an_arm_that_noise_cannot_reach_is_named(
    gspo_here: Gspo, smoke: Path, tmp_path: Path, replay: str, says: bool
) -> None:
    """Replayed experts are noised too, so that noise reaches what is trained on."""
    metrics = []
    for share in ("0.3", "0"):
        keys = ["--set", f"noise.experts={share}", "--set", f"algo.replay={replay}", "--set", "eval.bench=[]"]
        out = ["--out", tmp_path, "--name", f"n{share}", "--steps", "1"]
        done = ok(gspo_here("train", smoke, "--algo", "reinforce", *keys, *out))
        said = "warning: reinforce has no importance ratio, so [noise] changes nothing that it trains on" in done.err
        assert said == (says and share == "0.3"), done.err
        rows = strict_lines(tmp_path / f"n{share}" / "reinforce-s0" / "metrics.jsonl")
        metrics.append([row["metrics"]["grad/norm"] for row in rows if row["kind"] == "update"])
    assert metrics[0] and (metrics[0] == metrics[1]) == says
